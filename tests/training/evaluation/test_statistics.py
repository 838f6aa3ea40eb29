import pytest

from lathe.training.evaluation.statistics import Interval


@pytest.mark.parametrize(
    ("low", "high", "sign"), [(0.1, 2, 1), (-2, -0.1, -1), (-0.1, 0.1, 0), (0, 1, 0), (-1, 0, 0), (None, None, 0)]
)
def test_the_sign_of_an_interval_is_0_unless_0_is_outside(low, high, sign):
    assert Interval(5.0, low, high).sign == sign
