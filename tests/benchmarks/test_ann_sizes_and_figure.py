import os

import numpy as np
import pytest

from benchmarks.ann.data import Data, find_nearest, split_rows
from benchmarks.ann.figure import EMBEDDED, KS, NORMAL, REDUCED, make_vectors, measure_recall_by_dimension
from benchmarks.ann.point import compute_overlap
from benchmarks.ann.sizes import find_candidates, measure_at_equal_bytes, rescore_candidates

pytestmark = pytest.mark.release
REDUCERS = ("geopres", "pca", "truncation")


@pytest.fixture(scope="module")
def cut(unit):
    return split_rows(Data("clusters", unit, None, ()), 0, 280, 40, 80, 10)


@pytest.fixture(scope="module")
def sizes(cut):
    """Return the recalls of two seeds at 32 bytes, and check the progress reports."""
    told = []
    found = measure_at_equal_bytes([cut, cut], [32], 10, False, lambda fraction, message: told.append(fraction))
    assert told == sorted(told) and len(told) == len(found) and 0 <= told[0] <= told[-1] < 1
    return found


@pytest.fixture(scope="module")
def figure(clusters):
    """Return one run of the figure on few vectors, and restore the CPU cores it restricts."""
    rows = clusters(700, 32)
    data = Data("clusters", rows / np.linalg.norm(rows, axis=1, keepdims=True), None, ())
    cores = os.sched_getaffinity(0)
    try:
        return measure_recall_by_dimension(data, 1, 300, lambda fraction, message: None)
    finally:
        os.sched_setaffinity(0, cores)


def by_kind(figure, kind):
    return {row["dimensions"]: row for row in figure if row["kind"] == kind}


def test_recall_at_equal_bytes_never_falls_with_rescoring(sizes):
    methods = [*(f"{kind}:8" for kind in REDUCERS), "int8"]
    assert [(row["seed"], row["method"]) for row in sizes] == [(seed, name) for seed in (0, 1) for name in methods]
    assert {row["bytes"] for row in sizes} == {32}
    for row in sizes:
        alone, four, eight = (row["recall"][times] for times in ("1", "4", "8"))
        assert 0 < alone <= four <= eight <= 1
    by_method = {row["method"]: row["recall"] for row in sizes}
    assert by_method["int8"]["1"] > 0.9 > by_method["truncation:8"]["1"]
    assert by_method["pca:8"]["1"] > by_method["truncation:8"]["1"]


def test_truncation_recall_with_and_without_rescoring_equals_plain_numpys(cut, sizes):
    truth = np.argsort(-(cut.queries @ cut.corpus.T), axis=1)[:, :10]
    few = [rows[:, :8] / np.linalg.norm(rows[:, :8], axis=1, keepdims=True) for rows in (cut.queries, cut.corpus)]
    found = np.argsort(-(few[0] @ few[1].T), axis=1)
    expected = compute_overlap(found[:, :10], truth).mean()
    (row,) = [row for row in sizes if (row["method"], row["seed"]) == ("truncation:8", 0)]
    assert row["recall"]["1"] == pytest.approx(expected, abs=0.005)
    best = rescore_candidates(found[:, :40], cut.queries, cut.corpus.astype(np.float16), 10)
    assert row["recall"]["4"] == pytest.approx(compute_overlap(best, truth).mean(), abs=0.005)


def test_rabitq_candidates_have_more_recall_among_80_than_among_10(cut):
    found = find_candidates("RaBitQ", cut, 0, 80)
    truth = find_nearest(cut.queries, cut.corpus, 10)
    assert found.shape == (40, 80)
    assert 0.3 < compute_overlap(found[:, :10], truth).mean() < compute_overlap(found, truth).mean()


def test_rescored_ranks_by_the_original_vectors_and_skips_missing_candidates():
    originals = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.5, 0.5]], np.float16)
    query = np.array([[1, 0]], np.float32)
    assert rescore_candidates(np.array([[3, -1, 2, 1, 0]]), query, originals, 2).tolist() == [[0, 1]]
    assert rescore_candidates(np.array([[3, 2]]), query, originals, 2).tolist() == [[3, 2]]


def test_recall_by_dimension_has_one_row_per_kind_and_dimensions(figure):
    dimensions = (16, 32, 64, 128, 192, 256, 384, 768, 1536)
    wanted = [(NORMAL, d) for d in dimensions] + [(REDUCED, 16)] + [(EMBEDDED, d) for d in (32, 768, 1536)]
    assert [(row["kind"], row["dimensions"]) for row in figure] == wanted
    for row in figure:
        assert row["microseconds"] > 0 and row["build_seconds"] > 0 and row["run"] == 0
        assert all(0 <= row[side][str(k)] <= 1 for side in ("index_recall", "recall") for k in KS)


def test_only_reduced_vectors_have_less_recall_than_index_recall(figure):
    for row in by_kind(figure, NORMAL).values():
        assert row["recall"] == row["index_recall"]
    for row in by_kind(figure, EMBEDDED).values():
        assert row["recall"] == pytest.approx(row["index_recall"], abs=0.005)
    (reduced,) = by_kind(figure, REDUCED).values()
    assert reduced["recall"]["10"] < reduced["index_recall"]["10"] - 0.05


@pytest.mark.parametrize("dimensions", [32, 100, 768])
def test_rotating_vectors_into_more_dimensions_preserves_inner_products(cut, dimensions):
    rng = np.random.default_rng(0)
    corpus, queries, originals = make_vectors(EMBEDDED, dimensions, cut.corpus, cut.queries, cut.fit, rng, 0)
    assert corpus.shape[1] == queries.shape[1] == dimensions
    np.testing.assert_allclose(queries @ corpus.T, cut.queries @ cut.corpus.T, rtol=0, atol=1e-5)
    assert originals[0] is cut.queries and originals[1] is cut.corpus
    assert np.abs(corpus[:, :32] - cut.corpus).max() > 0.1


def test_normal_vectors_are_unit_float32_and_their_own_originals(cut):
    rng = np.random.default_rng(0)
    corpus, queries, originals = make_vectors(NORMAL, 16, cut.corpus, cut.queries, cut.fit, rng, 0)
    assert (corpus.shape, queries.shape, corpus.dtype) == ((280, 16), (40, 16), np.float32)
    np.testing.assert_allclose(np.linalg.norm(corpus, axis=1), 1, rtol=0, atol=1e-5)
    assert originals[0] is queries and originals[1] is corpus
