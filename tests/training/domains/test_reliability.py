import numpy as np
import pytest

from training.research.domains.reliability import measure_split_half

RANDOM = np.random.default_rng(0)


def test_data_sets_that_all_rank_the_encoders_alike_agree_fully():
    levels = np.array([0.2, 0.9, 0.4, 0.5, 0.7])
    assert measure_split_half([levels[:, None] + np.array([0, 0.3, 0.1, 0.2, 0.7])]) == pytest.approx(1)


def test_data_sets_that_rank_the_encoders_at_random_agree_on_nothing():
    found = [measure_split_half([RANDOM.random((8, 12))]) for _ in range(60)]
    assert np.mean(found) == pytest.approx(0, abs=0.1)


def test_more_data_sets_rank_more_reliably():
    levels, noise = np.linspace(0, 1, 8)[:, None], RANDOM.normal(0, 0.8, (8, 64))
    few, more, most = (measure_split_half([levels + noise[:, :tasks]]) for tasks in (4, 16, 64))
    assert few < more < most < 1


def test_half_as_many_halvings_part_two_ways_of_ranking_as_mix_them():
    """Of four data sets, two rank one way and two the other: a third of the halvings sets one way against the other."""
    up, down = [1.0, 2.0, 4.0], [4.1, 2.0, 1.0]
    found = measure_split_half([np.array([up, up, down, down]).T])
    assert found == pytest.approx((2 * 1 - 1) / 3, abs=0.15)


def test_every_type_is_halved_and_counts_once_however_many_data_sets_it_has():
    steady = np.tile([[0.1], [0.2], [0.3]], 40)
    swung = np.array([[0.0, 0.6], [0.3, 0.3], [0.6, 0.0]])  # its two halves rank opposite ways
    assert measure_split_half([steady, swung]) == pytest.approx(-1)
    assert measure_split_half([steady, 0.1 * swung]) == pytest.approx(1)


def test_a_type_with_one_data_set_is_left_out_and_three_data_sets_are_too_few():
    four, one = RANDOM.random((5, 4)), RANDOM.random((5, 1))
    assert measure_split_half([one, four]) == measure_split_half([four])
    assert [measure_split_half(types) for types in ([four[:, :3]], [one] * 6, [four[:, :2], one], [])] == [None] * 4


def test_encoders_without_an_order_have_no_reliability():
    assert measure_split_half([np.full((4, 6), 0.5)]) is None


def test_the_halves_are_the_same_each_time_and_other_seeds_give_others():
    scores = RANDOM.random((6, 9))
    assert measure_split_half([scores]) == measure_split_half([scores]) != measure_split_half([scores], seed=1)
