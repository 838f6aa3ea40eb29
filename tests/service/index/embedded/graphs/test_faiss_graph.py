"""FAISS's graph over codes: which rows it finds, their scores, and that it is written and read."""

import errno
import io
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from lathe.service.index.embedded.graphs import create_graph, find_graph_problem
from lathe.service.index.embedded.graphs.faiss_graph import FaissGraph
from lathe.service.index.embedded.vector_formats import choose_format
from lathe.service.index.reducer import Reducer

pytest.importorskip("faiss")

ROWS, QUERIES, K = 1200, 20, 10


CASES = [
    ("codes:5", "cosine"), ("r2,codes:4", "ip"), ("codes:4,restore_norm=false,weighting=0.5", "ip"),
    ("product_codes:6", "cosine"), ("product_codes:6", "ip"), ("pca:12,int8", "cosine"), ("pca:12,int8", "ip"),
]  # fmt: skip


@pytest.fixture(params=CASES, ids=str)
def case(request):
    """Return the steps of a chain and the metric of an index."""
    return request.param


@pytest.fixture
def made(chain_of, coded_spec, biased, case):
    """Return an empty graph over the codes of a chain, the codes of some rows, queries, and exact scores."""
    steps, metric = case
    chain, artifact = chain_of(steps)
    spec = replace(coded_spec(metric), dimensions=chain.output_dimensions)
    reducer = Reducer(spec, artifact)
    vectors = choose_format(spec, reducer)
    queries = reducer.reduce_queries(biased(QUERIES, 7))
    codes = vectors.encode(biased(ROWS, 3))
    exact = vectors.score(torch.from_numpy(queries), codes).numpy()
    return create_graph(spec, vectors, 1), codes, queries, exact


def assert_best(found, exact):
    """Assert that the rows found have their exact scores, the best first, and that few better rows are missing."""
    rows, scores, covered = found
    assert covered == ROWS
    tolerance = 1e-5 * np.abs(exact).max()
    np.testing.assert_allclose(scores, np.take_along_axis(exact, rows, 1), atol=tolerance)
    assert (np.diff(scores, axis=1) <= 0).all()
    best = -np.sort(-exact, axis=1)[:, :K]  # equal codes have equal scores, and any of them will do
    assert (scores >= best - tolerance).mean() > 0.95


def test_a_graph_over_codes_read_from_its_file_answers_alike_and_can_be_extended(made, tmp_path):
    graph, codes, queries, exact = made
    assert isinstance(graph, FaissGraph)
    for start in (0, 500):
        graph.extend(codes[start : start + 500], 1, ROWS - start)
    again = FaissGraph(graph.spec, graph.scoring, 1)
    with (tmp_path / "graph").open("w+b") as file:
        graph.save(file)
        again.load(file, 1000)
    for one, other in zip(graph.search(queries, K, 60), again.search(queries, K, 60), strict=True):
        np.testing.assert_array_equal(one, other)
    again.extend(codes[1000:], 1, 200)
    found = again.search(queries, K, 200)
    assert_best(found, exact)
    assert again.covered == ROWS and (found[0] >= 1000).any() and again.bytes < 250 * ROWS


def test_rows_linked_as_bytes_and_rows_linked_as_codes_are_found_alike(made):
    graph, codes, queries, exact = made
    graph.extend(codes[:1000], 1, 1000)
    at_once = graph.bytes
    graph.extend(codes[1000:1100], 1, 100)  # few: codes are compared with each other
    one_by_one = graph.bytes
    graph.extend(codes[1100:1150], 1, 300)  # many are to come
    meanwhile = graph.bytes
    graph.extend(codes[1150:], 1, 50)
    found = graph.search(queries, K, 200)
    assert_best(found, exact)
    assert all((found[0] >= first).any() for first in (1000, 1100, 1150))
    assert at_once < 250 * 1000
    if graph.scoring.create_links():  # tables stay, bytes do not
        tables = 4 * 256**2 * graph.scoring.code_bytes
        assert tables < one_by_one < tables + 250 * 1100
        assert graph.bytes < meanwhile


one_case = pytest.mark.parametrize("case", CASES[:1], indirect=True)


@one_case
@pytest.mark.parametrize("lacking", [200, 5], ids=["many", "few"])
def test_a_graph_whose_extension_failed_is_empty_and_is_built_anew(made, monkeypatch, lacking):
    graph, codes, queries, exact = made
    graph.extend(codes[:1000], 1, 1000)

    def fail(_factors):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(graph, "_append_factors", fail)
        with pytest.raises(MemoryError):
            graph.extend(codes[1000:1005], 1, lacking)
    assert graph.covered == graph.bytes == 0 and graph.search(queries, 1, 10) is None
    graph.extend(codes, 1, ROWS)
    assert_best(graph.search(queries, K, 200), exact)


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[5]], indirect=True)
def test_a_graph_over_codes_with_fewer_rows_than_asked_for_returns_none(made):
    graph, codes, queries, _ = made
    assert graph.search(queries, 1, 10) is None
    graph.extend(codes[:5], 1, 5)
    assert graph.search(queries, 6, 10) is None
    assert np.sort(graph.search(queries, 5, 10)[0], axis=1).tolist() == [[0, 1, 2, 3, 4]] * QUERIES


@one_case
def test_saving_on_a_full_disk_raises_oserror(made):
    class FullDisk(io.RawIOBase):
        def write(self, payload):
            raise OSError(errno.ENOSPC, "No space left on device")

    graph, codes, _, _ = made
    graph.extend(codes[:50], 1, 50)
    with pytest.raises(OSError, match="No space left"):
        graph.save(FullDisk())


@one_case
def test_zero_vectors_are_found_with_score_0(made, chain_of):
    graph, codes, queries, _ = made
    graph.extend(np.concatenate([codes[:20], np.zeros_like(codes[:1])]), 1, 21)
    rows, scores, _ = graph.search(queries, 21, 30)
    assert (scores[rows == 20] == 0).all() and (rows == 20).sum() == QUERIES


@pytest.mark.parametrize(
    ("chain", "metric"), [("codes:5", "l2"), ("codes:8,weighting=0.5", "cosine"), ("pca:12,binary", "cosine")]
)
def test_codes_that_faiss_does_not_score_are_linked_as_floats(chain_of, coded_spec, chain, metric):
    pytest.importorskip("hnswlib")
    chain, artifact = chain_of(chain)
    spec = replace(coded_spec(metric), dimensions=chain.output_dimensions)
    graph = create_graph(spec, choose_format(spec, Reducer(spec, artifact)), 1)
    assert graph.engine == "hnsw"


@pytest.fixture
def without_hnswlib(monkeypatch):
    """Let Python find FAISS, and no hnswlib."""
    monkeypatch.setitem(sys.modules, "hnswlib", None)


@pytest.mark.parametrize(
    "case",
    [("r2,pca:12", "cosine"), ("r2,pca:12", "ip"), ("r2,pca:12", "l2"), ("codes:4", "l2"), ("pca:12,binary", "cosine")],
    indirect=True,
    ids=str,
)
def test_without_hnswlib_faiss_links_floats_and_scores_them_as_exact_search_does(without_hnswlib, made, tmp_path):
    graph, rows, queries, exact = made
    assert graph.engine == "faiss"
    graph.extend(rows[:1000], 1, ROWS)
    again = FaissGraph(graph.spec, graph.scoring, 1)
    with (tmp_path / "graph").open("w+b") as file:
        graph.save(file)
        again.load(file, 1000)
    again.extend(rows[1000:], 1, ROWS - 1000)
    found, scores, covered = again.search(queries, K, 200)
    assert covered == ROWS and (found >= 1000).any()
    tolerance = 1e-3 * np.abs(exact).max()
    np.testing.assert_allclose(scores, np.take_along_axis(exact, found, 1), atol=tolerance)
    assert (scores >= -np.sort(-exact, axis=1)[:, :K] - tolerance).mean() > 0.95


def test_a_missing_engine_is_a_message_for_the_user(without_hnswlib, monkeypatch, coded_spec):
    monkeypatch.setitem(sys.modules, "faiss", None)
    spec = replace(coded_spec(), chain="none")
    assert create_graph(spec, choose_format(spec, Reducer(spec, None)), 1) is None
    assert "pip install 'lathe-service[faiss]'" in find_graph_problem(None)
