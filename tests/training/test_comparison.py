import numpy as np
import pytest

from lathe.training.comparison import Interval, bootstrap_ratio, choose_cheapest, compare


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.mark.parametrize(
    ("low", "high", "sign"), [(0.1, 2, 1), (-2, -0.1, -1), (-0.1, 0.1, 0), (0, 1, 0), (-1, 0, 0), (None, None, 0)]
)
def test_the_sign_of_an_interval_is_0_unless_0_is_outside(low, high, sign):
    assert Interval(5.0, low, high).sign == sign


def test_bootstrap_ratio_divides_the_means_and_resamples_tasks():
    scores, control = np.array([[0.4], [0.5], [0.3]]), np.array([[0.8], [0.5], [0.4]])
    found = bootstrap_ratio(scores, control)
    assert found.value == pytest.approx(1.2 / 1.7)
    assert (found.low, found.high) == pytest.approx((0.5, 1.0))  # only the first task drawn, only the second
    ahead = bootstrap_ratio(scores, control, rival=scores - 0.17)
    assert ahead.value == pytest.approx(3 * 0.17 / 1.7) and ahead.sign == 1
    same = bootstrap_ratio(0.9 * control, control)
    assert (same.value, same.low, same.high) == pytest.approx((0.9, 0.9, 0.9))


def test_bootstrap_ratio_averages_over_encoders_and_has_no_interval_for_one_task():
    scores, control = np.array([[0.4, 0.3]]), np.array([[0.8, 0.4]])
    assert bootstrap_ratio(scores, control) == Interval(pytest.approx(0.625), None, None)


def test_a_difference_is_paired_by_unit():
    before = np.random.default_rng(0).uniform(size=400)
    noise = 0.001 * np.random.default_rng(1).normal(size=400)
    found = compare(before + 0.01 + noise, before)
    assert found.value == pytest.approx(0.01, abs=1e-3)
    assert found.reach == pytest.approx(1.966 * noise.std(ddof=1) / 20, rel=1e-3) and found.sign == 1
    assert compare(np.ones(1), np.zeros(1)).reach is None


def test_the_cheapest_candidate_is_chosen_that_beats_the_first_and_that_no_other_beats():
    """The second one of the last case is not worse than the third, and no better than the first."""
    noise = [0.01 * np.random.default_rng(seed).normal(size=200) for seed in range(3)]
    for gains, chosen in (
        ((0, 0, 0), 0),
        ((0, 0.1, 0.1), 1),
        ((0, 0.1, 0.3), 2),
        ((0, 0.0005, -0.1), 0),
        ((0, 0.0012, 0.0024), 2),
    ):
        assert choose_cheapest([gain + own for gain, own in zip(gains, noise, strict=True)]) == chosen
