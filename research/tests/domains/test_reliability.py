import numpy as np
import pytest

from research.domains.reliability import measure_split_half


def test_measure_split_half_averages_over_halvings_of_two_opposite_rankings():
    """Of four data sets, two rank one way and two the other: a third of the halvings sets one way against the other."""
    up, down = [1.0, 2.0, 4.0], [4.1, 2.0, 1.0]
    found = measure_split_half([np.array([up, up, down, down]).T])
    assert found == pytest.approx((2 * 1 - 1) / 3, abs=0.15)


def test_measure_split_half_halves_each_task_type_and_weights_types_equally():
    steady = np.tile([[0.1], [0.2], [0.3]], 40)
    swung = np.array([[0.0, 0.6], [0.3, 0.3], [0.6, 0.0]])  # its two halves rank opposite ways
    assert measure_split_half([steady, swung]) == pytest.approx(-1)
    assert measure_split_half([steady, 0.1 * swung]) == pytest.approx(1)
