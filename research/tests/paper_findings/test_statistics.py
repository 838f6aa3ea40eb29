import numpy as np
import pytest
from scipy import stats

from research.paper_findings.statistics import (
    PairedTest,
    bootstrap,
    bootstrap_ratio,
    correlate,
    is_large,
    outlier_shares,
    paired_test,
)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def pairs(rng):
    """Return two measures of 40 things that are related, but not linearly."""
    x = rng.normal(size=40)
    return x, x**3 + rng.normal(size=40)


@pytest.mark.parametrize("tasks", [2, 5, 182])
def test_paired_test_equals_scipys_ttest_rel(rng, tasks):
    control = rng.uniform(0.2, 0.9, tasks)
    scores = control + rng.normal(0.003, 0.01, tasks)
    found, theirs = paired_test(scores, control), stats.ttest_rel(scores, control)
    assert (found.t, found.p) == pytest.approx((theirs.statistic, theirs.pvalue))
    assert found.n == tasks
    assert found.mean == pytest.approx(100 * (scores.mean() - control.mean()))


def test_sigma_cell_is_the_summed_difference_divided_by_the_deviation_of_the_raw_scores():
    found = paired_test(np.array([0.3, 0.4, 0.8]), np.array([0.2, 0.4, 0.6]))
    assert found.sigma_cell == pytest.approx(3 * 10 / 20)  # Eq. 12 of the mean-bias paper, in points


@pytest.mark.parametrize(
    ("t", "verdict"), [(2.0, "tie"), (2.001, "win"), (-2.0, "tie"), (-2.001, "loss"), (0.0, "tie"), (None, "tie")]
)
def test_a_paired_test_is_a_win_or_loss_beyond_t_of_2(t, verdict):
    assert PairedTest(5, 1.0, t, None, None).verdict == verdict


@pytest.mark.parametrize("rows", [20, 400])
def test_a_bootstrap_interval_is_near_that_of_the_normal_distribution(rng, rows):
    values = rng.normal(3, 1, rows)
    found, error = bootstrap(values), values.std() / np.sqrt(rows)
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((found.value - 1.96 * error, found.value + 1.96 * error), abs=0.05)


def test_correlate_equals_scipys_pearson_and_spearman(pairs):
    found = correlate(*pairs)
    assert found.n == 40
    assert found.pearson.value == pytest.approx(stats.pearsonr(*pairs).statistic)
    theirs = stats.spearmanr(*pairs)
    assert (found.spearman.value, found.p) == pytest.approx((theirs.statistic, theirs.pvalue))


def test_pearsons_interval_is_near_that_of_fishers_transformation(rng):
    x = rng.normal(size=200)
    y = x + rng.normal(size=200)
    found, theirs = correlate(x, y).pearson, stats.pearsonr(x, y).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.03)


@pytest.mark.parametrize(
    ("score", "control", "large"),
    [
        (0.65, 0.5, True),
        (0.35, 0.5, True),
        (0.59, 0.5, False),  # less than .1, though far more than 2 %
        (10.15, 10.0, False),  # more than .1, but less than 2 %: scores that do not end at 1
        (10.25, 10.0, True),
        (-10.15, -10.0, False),
        (-10.25, -10.0, True),
        (0.15, 0.0, True),
    ],
)
def test_is_large_requires_a_difference_over_0_1_and_over_2_percent(score, control, large):
    assert is_large(score, control) == large


def test_outlier_shares_counts_differences_over_two_deviations_from_the_mean():
    usual = np.resize([1.0, -1.0], 38)
    assert outlier_shares(np.append(usual, [20.0, 20.0])) == (2 / 40, 0)
    assert outlier_shares(np.append(usual, [20.0, -20.0])) == (1 / 40, 1 / 40)
    assert outlier_shares(np.append(usual, [20.0, -20.0]) + 50) == (1 / 40, 1 / 40)


def test_bootstrap_ratio_divides_the_means_and_resamples_tasks():
    scores, control = np.array([[0.4], [0.5], [0.3]]), np.array([[0.8], [0.5], [0.4]])
    found = bootstrap_ratio(scores, control)
    assert found.value == pytest.approx(1.2 / 1.7)
    assert (found.low, found.high) == pytest.approx((0.5, 1.0))  # only the first task drawn, only the second
    ahead = bootstrap_ratio(scores, control, rival=scores - 0.17)
    assert ahead.value == pytest.approx(3 * 0.17 / 1.7) and ahead.sign == 1
    same = bootstrap_ratio(0.9 * control, control)
    assert (same.value, same.low, same.high) == pytest.approx((0.9, 0.9, 0.9))
