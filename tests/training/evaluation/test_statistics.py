import numpy as np
import pytest

from lathe.training.evaluation.statistics import Interval, bootstrap_ratio


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
