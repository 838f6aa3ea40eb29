import math

import pytest
from scipy import stats

from benchmarks.ann.frontier import average_ratio, find_frontier, interpolate_at_recall, logit


def setting(recall, microseconds, **others):
    return {"recall": recall, "microseconds": microseconds, "p99": 3 * microseconds} | others


def pairs(settings):
    return [(found["recall"], found["microseconds"]) for found in settings]


@pytest.mark.parametrize(
    ("given", "best"),
    [
        ([], []),
        ([(0.5, 1)], [(0.5, 1)]),
        ([(0.9, 2), (0.5, 1), (0.99, 3)], [(0.5, 1), (0.9, 2), (0.99, 3)]),
        ([(0.9, 2), (0.8, 3)], [(0.9, 2)]),  # worse in both
        ([(0.9, 2), (0.8, 2)], [(0.9, 2)]),  # no quicker
        ([(0.9, 2), (0.9, 1)], [(0.9, 1)]),  # no better
        ([(0.9, 2), (0.9, 2)], [(0.9, 2)]),  # once
        ([(0.5, 1), (0.6, 5), (0.7, 4), (0.8, 2), (1.0, 9), (0.9, 9)], [(0.5, 1), (0.8, 2), (1.0, 9)]),
    ],
)
def test_frontier_is_the_pareto_set_of_recall_and_time_in_order(given, best):
    for order in (given, given[::-1]):
        assert pairs(find_frontier([setting(*pair) for pair in order])) == best


@pytest.mark.parametrize("target", [0.75, 0.9, 0.93, 0.9625, 0.985])
def test_at_recall_interpolates_log_time_linearly_in_the_logit_of_recall(target):
    def time_of(recall):
        return math.exp(1.5 + 0.8 * logit(recall))

    found = interpolate_at_recall([setting(recall, time_of(recall)) for recall in (0.7, 0.99, 0.92, 0.8)], target)
    assert found.microseconds == pytest.approx(time_of(target), rel=1e-12)
    assert found.p99 == pytest.approx(3 * time_of(target), rel=1e-12)
    assert found.setting["recall"] == min(recall for recall in (0.8, 0.92, 0.99) if recall >= target)


def test_ratio_of_is_a_geometric_mean_with_an_interval_in_logarithms():
    found = average_ratio([1.0, 4.0], [2.0, 2.0])
    assert found.value == pytest.approx(1)
    low, high = stats.t.interval(0.95, 1, 0, stats.sem([-math.log(2), math.log(2)]))
    assert (-found.half, found.half) == pytest.approx((low, high))
