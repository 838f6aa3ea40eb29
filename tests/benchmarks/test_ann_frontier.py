import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.ann.frontier import (
    average_ratio,
    average_seeds,
    find_frontier,
    interpolate_at_recall,
    logit,
)


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


def test_at_recall_of_a_measured_recall_is_the_measured_time():
    found = interpolate_at_recall([setting(0.8, 1.0), setting(0.95, 7.0), setting(0.99, 9.0)], 0.95)
    assert (found.microseconds, found.p99, found.setting["microseconds"]) == (7.0, 21.0, 7.0)


def test_at_recall_ignores_settings_outside_the_frontier():
    best = [setting(0.8, 1.0), setting(0.99, 9.0)]
    assert interpolate_at_recall([*best, setting(0.94, 50.0), setting(0.79, 2.0)], 0.95) == interpolate_at_recall(
        best, 0.95
    )


def test_at_recall_above_the_highest_measured_recall_is_none():
    assert interpolate_at_recall([setting(0.8, 1.0), setting(0.94, 2.0)], 0.95) is None
    assert interpolate_at_recall([], 0.95) is None


def test_at_recall_below_every_measured_recall_is_the_fastest_setting():
    found = interpolate_at_recall([setting(0.99, 9.0), setting(0.97, 4.0), setting(0.96, 5.0)], 0.9)
    assert (found.microseconds, found.p99, found.setting["recall"]) == (4.0, 12.0, 0.97)


def test_at_recall_interpolates_up_to_a_recall_of_one():
    found = interpolate_at_recall([setting(0.9, 1.0), setting(1.0, 2.0)], 0.99)
    assert 1 < found.microseconds < 2
    assert interpolate_at_recall([setting(0.9, 1.0), setting(1.0, 2.0)], 1.0).microseconds == 2


def test_logit_is_antisymmetric_around_one_half_and_finite_at_0_and_1():
    assert [logit(0.5), logit(0.75), logit(0.25)] == pytest.approx([0, math.log(3), -math.log(3)])
    assert logit(0) == pytest.approx(-logit(1)) and logit(0.9999) < logit(1) < math.inf


@pytest.mark.parametrize("values", [(3.0, 5.0), (1.0, 2.0, 4.0), (7.0, 7.5, 6.0, 9.0, 8.25)])
def test_mean_of_seeds_has_scipys_95_percent_t_interval(values):
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    found = average_seeds(values)
    assert (found.value, found.values) == (pytest.approx(np.mean(values)), values)
    assert (found.value - found.half, found.value + found.half) == pytest.approx((low, high))


def test_ratio_of_is_paired_by_seed():
    found = average_ratio([10.0, 200.0, 3000.0], [5.0, 100.0, 1500.0])
    assert found.value == pytest.approx(2) and found.values == pytest.approx((2, 2, 2))
    assert found.half == pytest.approx(0, abs=1e-9)  # seeds may differ as they like
    with pytest.raises(ValueError, match="zip"):
        average_ratio([1.0, 2.0], [1.0])


def test_ratio_of_is_a_geometric_mean_with_an_interval_in_logarithms():
    found = average_ratio([1.0, 4.0], [2.0, 2.0])
    assert found.value == pytest.approx(1)
    low, high = stats.t.interval(0.95, 1, 0, stats.sem([-math.log(2), math.log(2)]))
    assert (-found.half, found.half) == pytest.approx((low, high))
