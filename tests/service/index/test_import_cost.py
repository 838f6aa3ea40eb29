import numpy as np
import pytest

from lathe.service.index.import_cost import measure_cost
from lathe.service.index.reducer import Reducer
from lathe.training.sources.source import open_source


@pytest.mark.parametrize(("metric", "normalize"), [("ip", True), ("l2", True), ("ip", False), ("cosine", True)])
def test_the_recall_of_an_import_is_by_the_metric_asked_for(tmp_path, chain_of, coded_spec, biased, metric, normalize):
    rows = biased(300) * np.random.default_rng(1).uniform(0.2, 5, (300, 1)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    _, artifact = chain_of("codes:8", normalize)
    spec = coded_spec(metric)
    reducer = Reducer(spec, artifact)
    cost = measure_cost(open_source(str(tmp_path / "rows.npy")), None, spec, reducer, lambda *_: None)

    def nearest(queries, documents):
        if metric == "cosine":
            queries, documents = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (queries, documents))
        far = np.linalg.norm(queries[:, None] - documents, axis=2) if metric == "l2" else -queries @ documents.T
        np.fill_diagonal(far, np.inf)
        return far.argsort(axis=1)

    right, found = nearest(rows, rows), nearest(reducer.reduce_queries(rows), reducer.reduce_documents(rows))
    for name, candidates in (("recall_at_10", 10), ("recall_at_10_rescored_4x", 40)):
        shared = [len({*best[:10]} & {*row[:candidates]}) / 10 for best, row in zip(right, found, strict=True)]
        assert cost.quality[name] == pytest.approx(np.mean(shared), abs=0.002)
    dropped = metric != "cosine" and normalize
    assert (cost.warning is not None) == dropped
    assert not dropped or f"finds by cosine, not by {metric}" in cost.warning
