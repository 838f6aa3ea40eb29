import numpy as np
import pytest

from lathe.training.comparison import Interval, choose_cheapest, compare


@pytest.mark.parametrize(
    ("low", "high", "sign"), [(0.1, 2, 1), (-2, -0.1, -1), (-0.1, 0.1, 0), (0, 1, 0), (-1, 0, 0), (None, None, 0)]
)
def test_the_sign_of_an_interval_is_0_unless_0_is_outside(low, high, sign):
    assert Interval(5.0, low, high).sign == sign


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
