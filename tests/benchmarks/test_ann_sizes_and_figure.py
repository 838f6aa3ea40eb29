import os

import numpy as np
import pytest

from benchmarks.ann.data import Data, split_rows
from benchmarks.ann.figure import measure_recall_by_dimension
from benchmarks.ann.point import compute_overlap
from benchmarks.ann.sizes import measure_at_equal_bytes, rescore_candidates

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
