import numpy as np
import pytest

from lathe.service.index.embedded.graphs.graph import DECODED_ROWS, LINKED_ROWS, HnswGraph
from lathe.service.index.spec import IndexSpec

pytest.importorskip("hnswlib")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("lacking", "most"), [(100, LINKED_ROWS), (DECODED_ROWS + 1, DECODED_ROWS)])
def test_searches_wait_for_a_few_rows_unless_thousands_are_missing(monkeypatch, threads, lacking, most):
    graph = HnswGraph(IndexSpec(None, None, 16, "raw", "none", 16, "raw"), lambda rows: rows, threads)
    rows = np.random.default_rng(0).standard_normal((lacking, 16), np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    covered = []
    acquire = graph.lock.acquire_exclusive
    monkeypatch.setattr(graph.lock, "acquire_exclusive", lambda: (covered.append(graph.covered), acquire())[1])
    graph.extend(rows, threads, lacking)

    blocks = np.diff([*covered, graph.covered])
    assert blocks.sum() == lacking
    assert blocks.max() == (most * threads if most == LINKED_ROWS else most)
    assert (graph.search(rows, 1, 50)[0][:, 0] == np.arange(lacking)).mean() > 0.99
