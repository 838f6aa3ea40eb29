import numpy as np
import pytest
from scipy import stats

from training.evaluation.statistics import (
    Interval,
    PairedTest,
    bootstrap,
    bootstrap_ratio,
    correlate,
    is_large,
    leave_one_out,
    outlier_shares,
    paired_test,
)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def pairs(rng):
    """Two measures of 40 things that go together, but not on a line."""
    x = rng.normal(size=40)
    return x, x**3 + rng.normal(size=40)


@pytest.mark.parametrize("tasks", [2, 5, 182])
def test_the_paired_t_is_the_one_scipy_gives(rng, tasks):
    control = rng.uniform(0.2, 0.9, tasks)
    scores = control + rng.normal(0.003, 0.01, tasks)
    found, theirs = paired_test(scores, control), stats.ttest_rel(scores, control)
    assert (found.t, found.p) == pytest.approx((theirs.statistic, theirs.pvalue))
    assert found.n == tasks
    assert found.mean == pytest.approx(100 * (scores.mean() - control.mean()))


def test_sigma_cell_is_the_summed_difference_over_the_spread_of_the_raw_scores():
    found = paired_test(np.array([0.3, 0.4, 0.8]), np.array([0.2, 0.4, 0.6]))
    assert found.sigma_cell == pytest.approx(3 * 10 / 20)  # Eq. 12 of the mean-bias paper, in points


def test_sigma_cell_grows_with_the_root_of_n_beside_t(rng):
    """What its Appendix B says of it: more tasks of the same kind amplify it, whatever the pairs do."""
    control, gain = rng.uniform(size=20), rng.normal(0.01, 0.02, 20)
    few, many = paired_test(control + gain, control), paired_test(np.tile(control + gain, 100), np.tile(control, 100))
    assert many.sigma_cell / few.sigma_cell == pytest.approx(100, rel=0.03)
    assert many.t / few.t == pytest.approx(10, rel=0.03)


def test_exchanging_the_two_turns_every_sign(rng):
    one, other = rng.uniform(size=9), rng.uniform(size=9)
    there, back = paired_test(one, other), paired_test(other, one)
    assert (there.t, there.mean, there.p) == pytest.approx((-back.t, -back.mean, back.p))


def test_one_task_has_a_difference_but_no_t():
    found = paired_test(np.array([0.75]), np.array([0.5]))
    assert found == PairedTest(n=1, mean=25.0, t=None, p=None, sigma_cell=None)


def test_scores_that_did_not_change_are_a_tie():
    same = np.array([0.1, 0.5, 0.7])
    found = paired_test(same, same)
    assert (found.mean, found.t, found.p, found.verdict) == (0.0, None, None, "tie")


@pytest.mark.parametrize(
    ("t", "verdict"), [(2.0, "tie"), (2.001, "win"), (-2.0, "tie"), (-2.001, "loss"), (0.0, "tie"), (None, "tie")]
)
def test_a_difference_is_decisive_beyond_two_standard_errors(t, verdict):
    assert PairedTest(5, 1.0, t, None, None).verdict == verdict


def test_a_bootstrap_is_the_same_each_time(rng):
    values = rng.normal(size=30)
    assert bootstrap(values) == bootstrap(values.copy())
    assert bootstrap(values) != bootstrap(values, seed=1)


@pytest.mark.parametrize("rows", [20, 400])
def test_a_bootstrap_interval_is_near_that_of_the_normal_distribution(rng, rows):
    values = rng.normal(3, 1, rows)
    found, error = bootstrap(values), values.std() / np.sqrt(rows)
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((found.value - 1.96 * error, found.value + 1.96 * error), abs=0.05)


def test_values_all_alike_have_an_interval_without_width():
    assert bootstrap(np.full(6, 0.5)) == Interval(0.5, 0.5, 0.5)


@pytest.mark.parametrize("values", [np.array([2.5]), np.array([[1.0, 4.0]])])
def test_one_row_gives_no_interval(values):
    assert bootstrap(values) == Interval(2.5, None, None)


def test_only_rows_are_drawn_anew(rng):
    """A second encoder that behaves as the first is no new evidence; a second task is."""
    values = rng.normal(size=(25, 3))
    assert bootstrap(values) == bootstrap(values.mean(axis=1))
    assert bootstrap(np.repeat(values, 10, axis=1)).low == pytest.approx(bootstrap(values).low)
    assert bootstrap(np.repeat(values, 10, axis=0)).low > bootstrap(values).low


@pytest.mark.parametrize(
    ("low", "high", "sign"), [(0.1, 2, 1), (-2, -0.1, -1), (-0.1, 0.1, 0), (0, 1, 0), (-1, 0, 0), (None, None, 0)]
)
def test_an_interval_has_a_sign_where_it_leaves_zero_out(low, high, sign):
    assert Interval(5.0, low, high).sign == sign


def test_correlations_are_those_scipy_gives(pairs):
    found = correlate(*pairs)
    assert found.n == 40
    assert found.pearson.value == pytest.approx(stats.pearsonr(*pairs).statistic)
    theirs = stats.spearmanr(*pairs)
    assert (found.spearman.value, found.p) == pytest.approx((theirs.statistic, theirs.pvalue))


def test_every_pair_may_be_drawn(pairs):
    """One far from all others makes the same difference wherever it stands."""
    x, y = (np.append(each, 50) for each in pairs)
    one, other = correlate(x, y).pearson, correlate(x[::-1], y[::-1]).pearson
    assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), abs=0.05)


def test_pearsons_interval_is_near_that_of_fishers_transformation(rng):
    x = rng.normal(size=200)
    y = x + rng.normal(size=200)
    found, theirs = correlate(x, y).pearson, stats.pearsonr(x, y).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.03)


def test_ties_share_their_rank(rng):
    x, y = rng.integers(0, 4, 30).astype(float), rng.integers(0, 4, 30).astype(float)
    assert correlate(x, y).spearman.value == pytest.approx(stats.spearmanr(x, y).statistic)


def test_spearman_asks_for_order_only(pairs):
    x, y = pairs
    one, other = correlate(x, y), correlate(x, np.exp(y))
    assert other.spearman == one.spearman
    assert other.pearson.value < one.pearson.value
    assert correlate(x, np.exp(x)).spearman == Interval(pytest.approx(1), pytest.approx(1), pytest.approx(1))


def test_the_opposite_measure_has_the_opposite_interval(pairs):
    x, y = pairs
    there, back = correlate(x, y).spearman, correlate(x, -y).spearman
    assert (back.value, back.low, back.high) == pytest.approx((-there.value, -there.high, -there.low), abs=1e-3)


def test_intervals_shrink_as_pairs_are_added(rng):
    x = rng.normal(size=200)
    y = x + rng.normal(size=200)
    for name in ("pearson", "spearman"):
        few, many = (getattr(correlate(x[:n], y[:n]), name) for n in (20, 200))
        assert few.low < many.low < many.value < many.high < few.high


@pytest.mark.parametrize(("x", "y"), [([1, 1, 1, 1], [1, 2, 3, 4]), ([1, 2, 3, 4], [5, 5, 5, 5]), ([1, 2], [3, 4])])
def test_what_never_varies_and_what_is_too_little_has_no_correlation(x, y):
    assert correlate(np.array(x, float), np.array(y, float)) is None


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
def test_an_effect_is_large_beyond_a_tenth_and_two_per_cent(score, control, large):
    assert is_large(score, control) == large


def test_what_lies_two_deviations_from_an_encoders_own_mean_stands_out():
    usual = np.resize([1.0, -1.0], 38)
    assert outlier_shares(np.append(usual, [20.0, 20.0])) == (2 / 40, 0)
    assert outlier_shares(np.append(usual, [20.0, -20.0])) == (1 / 40, 1 / 40)
    assert outlier_shares(np.append(usual, [20.0, -20.0]) + 50) == (1 / 40, 1 / 40)


@pytest.mark.parametrize("differences", [[], [3.0], [3.0, 3.0, 3.0]])
def test_nothing_stands_out_where_nothing_varies(differences):
    assert outlier_shares(np.array(differences)) == (0, 0)


def test_every_name_is_left_out_once():
    found = {name: list(rest) for name, rest in leave_one_out(["b", "a", "b", "c"])}
    assert list(found) == ["b", "a", "c"]
    assert found["b"] == [False, True, False, True]
    assert found["a"] == [True, False, True, True]


def test_a_ratio_is_that_of_the_means_and_its_interval_that_of_resampled_tasks():
    scores, control = np.array([[0.4], [0.5], [0.3]]), np.array([[0.8], [0.5], [0.4]])
    found = bootstrap_ratio(scores, control)
    assert found.value == pytest.approx(1.2 / 1.7)
    assert (found.low, found.high) == pytest.approx((0.5, 1.0))  # only the first task drawn, only the second
    ahead = bootstrap_ratio(scores, control, rival=scores - 0.17)
    assert ahead.value == pytest.approx(3 * 0.17 / 1.7) and ahead.sign == 1
    same = bootstrap_ratio(0.9 * control, control)
    assert (same.value, same.low, same.high) == pytest.approx((0.9, 0.9, 0.9))


def test_ratios_of_encoders_are_averaged_and_one_task_has_no_interval():
    scores, control = np.array([[0.4, 0.3]]), np.array([[0.8, 0.4]])
    assert bootstrap_ratio(scores, control) == Interval(pytest.approx(0.625), None, None)


def test_a_correlation_of_four_has_no_interval():
    x = np.arange(4.0)
    found = correlate(x, x)
    assert (found.pearson.value, found.pearson.low, found.spearman.sign) == (pytest.approx(1), None, 0)
    assert correlate(np.arange(5.0), np.arange(5.0)).pearson.low is not None
