from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.ann.data import find_nearest
from benchmarks.ann.engines import list_efforts, make_engine
from benchmarks.ann.point import choose_operating_point, compute_figures, compute_overlap, time_queries
from benchmarks.ann.searches import LocalSearch, Rescorer
from benchmarks.ann.spaces import Space


@pytest.fixture
def job():
    """Return the parts of a job that `timed` and `figures` read."""
    return SimpleNamespace(k=5, runs=3, engine="flat")


def setting(recall, microseconds):
    return {"recall": recall, "microseconds": microseconds}


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [(0.9, (0.95, 2.0)), (0.95, (0.95, 2.0)), (0.96, (0.99, 5.0)), (0.3, (0.4, 1.0)), (0.999, (0.99, 5.0))],
)
def test_operating_point_is_the_fastest_setting_with_enough_recall_or_that_of_highest_recall(wanted, chosen):
    settings = [setting(0.99, 6.0), setting(0.4, 1.0), setting(0.95, 2.0), setting(0.99, 5.0), setting(0.8, 3.0)]
    if wanted == 0.999:
        settings = settings[1:]
    assert tuple(choose_operating_point(settings, wanted).values()) == chosen


@pytest.mark.parametrize("candidates", [1, 4, 5, 6, 40])
def test_rescorer_keeps_the_k_candidates_with_the_best_scores_by_the_original_vectors(unit, candidates):
    originals = unit.astype(np.float16)
    rescore = Rescorer(originals, 5)
    rng = np.random.default_rng(0)
    for query in unit[:20] + np.float32(0.01):
        rows = rng.permutation(len(unit))[:candidates]
        found = rescore(query, rows)
        best = rows[np.argsort(-(originals[rows].astype(np.float64) @ query))[:5]]
        assert len(found) == min(5, candidates)
        assert set(found) == set(best)


@pytest.mark.parametrize("name", ["hnswlib", "faiss-hnsw", "faiss-hnsw-sq8", "flat", "rabitq"])
def test_engine_finds_nearest_neighbours_and_reports_its_bytes(unit, name):
    engine = make_engine(name, 400, 16, 100, 0)
    engine.build(unit)
    engine.set_effort(max(list_efforts(name, (10, 200))))
    found = engine.search(unit[:50], 10)
    assert found.shape == (50, 10) and found.dtype == np.int64
    recall = compute_overlap(found, find_nearest(unit[:50], unit, 10)).mean()
    assert recall > (0.5 if name == "rabitq" else 0.97)
    least = {"rabitq": 400 * 4, "faiss-hnsw-sq8": unit.nbytes // 4}.get(name, unit.nbytes)
    assert least < engine.bytes < 4 * unit.nbytes


def test_exact_search_has_a_recall_of_one_and_figures_that_equal_its_raw_times(job, unit):
    engine = make_engine("flat", 380, 0, 0, 0)
    engine.build(unit[:380])
    library = LocalSearch(job, Space("none", None), engine, unit[:380].astype(np.float16))
    queries, truth = unit[380:], find_nearest(unit[380:], unit[:380], 5)
    rows, candidates, times = time_queries(job, library, queries, 1)
    np.testing.assert_array_equal(rows, truth)
    np.testing.assert_array_equal(candidates, truth)
    assert times.shape == (3, 20, 3) and (times >= 0).all() and times[..., 1].all()
    found = compute_figures(job, rows, candidates, times, truth, truth, 1)
    assert (found["recall"], found["recall_p5"], found["index_recall"], found["runs"]) == (1, 1, 1, 3)
    assert found["microseconds"] == pytest.approx(times.sum() / 60 / 1000)
    assert found["p50"] <= found["p95"] <= found["p99"] <= found["p99_9"] <= times.sum(axis=2).max() / 1000
    parts = found["transform_microseconds"] + found["rescoring_microseconds"]
    assert parts == pytest.approx(times[..., [0, 2]].sum() / 60 / 1000)
