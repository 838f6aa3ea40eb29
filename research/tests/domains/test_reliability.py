import numpy as np
import pytest

from research.domains.reliability import measure_split_half

RANDOM = np.random.default_rng(0)


def test_measure_split_half_is_1_if_all_data_sets_rank_the_encoders_alike():
    levels = np.array([0.2, 0.9, 0.4, 0.5, 0.7])
    assert measure_split_half([levels[:, None] + np.array([0, 0.3, 0.1, 0.2, 0.7])]) == pytest.approx(1)


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


def test_measure_split_half_drops_types_of_one_data_set_and_needs_four_data_sets():
    four, one = RANDOM.random((5, 4)), RANDOM.random((5, 1))
    assert measure_split_half([one, four]) == measure_split_half([four])
    assert [measure_split_half(types) for types in ([four[:, :3]], [one] * 6, [four[:, :2], one], [])] == [None] * 4


def test_measure_split_half_is_none_if_all_means_are_equal():
    assert measure_split_half([np.full((4, 6), 0.5)]) is None
