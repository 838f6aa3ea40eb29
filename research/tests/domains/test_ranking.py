from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from research.domains.ranking import compare_rankings, compute_least_p, find_detectable_rho

NAMES = list("abcdefghijkl")


def by_encoder(values):
    """Return values by the names of encoders."""
    return dict(zip(NAMES, values, strict=False))


def count_p(x, y):
    """Return the two-sided p-value by counting all orders."""
    found = stats.spearmanr(x, y).statistic
    all_ = np.array([stats.spearmanr(x, order).statistic for order in permutations(y)])
    return min(1.0, 2 * min((all_ >= found - 1e-9).mean(), (all_ <= found + 1e-9).mean()))


@pytest.mark.parametrize(
    "order", [(0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1), (0.2, 0.1, 0.3, 0.4), (0.1, 0.1, 0.3, 0.4)]
)
def test_compare_rankings_of_few_encoders_computes_p_from_all_orders(order):
    one = compare_rankings("STS", by_encoder((1.0, 2.0, 3.0, 5.0)), by_encoder(order))
    assert one.rho == pytest.approx(stats.spearmanr((1, 2, 3, 5), order).statistic)
    assert one.p == pytest.approx(count_p((1, 2, 3, 5), order))


def test_four_encoders_have_no_detectable_rho_and_five_only_1():
    four = compare_rankings("STS", by_encoder((1, 2, 3, 4)), by_encoder((1, 2, 3, 4)))
    assert (four.rho, four.p, four.least_p) == (pytest.approx(1), pytest.approx(2 / 24), pytest.approx(2 / 24))
    assert four.detectable is None
    five = compare_rankings("STS", by_encoder((1, 2, 3, 4, 5)), by_encoder((5, 4, 3, 2, 1)))
    assert (five.rho, five.p, five.detectable) == (pytest.approx(-1), pytest.approx(2 / 120), pytest.approx(1))


def test_find_detectable_rho_agrees_with_published_critical_values():
    """Two-sided .05: Zar, Biostatistical Analysis, Table B.20."""
    assert [round(find_detectable_rho(n), 3) for n in (6, 7, 8)] == [0.886, 0.786, 0.738]


def test_compare_rankings_of_twelve_encoders_computes_p_by_students_t():
    x, y = np.random.default_rng(3).random((2, 12))
    one = compare_rankings("STS", by_encoder(x.tolist()), by_encoder(y.tolist()))
    expected = stats.spearmanr(x, y)
    assert (one.rho, one.p) == (pytest.approx(expected.statistic), pytest.approx(expected.pvalue))
    rho = find_detectable_rho(12)
    t = rho * np.sqrt(10 / (1 - rho**2))
    assert 2 * stats.t.sf(t, 10) == pytest.approx(0.05)
    assert compute_least_p(12) == 0


def test_compare_rankings_uses_encoders_of_both_suites_and_needs_three():
    one = compare_rankings("STS", {"a": 0.1, "b": 0.2, "c": 0.3}, {"c": 0.5, "a": 0.4, "d": 0.1})
    assert one.encoders == ("a", "c")
    assert one.means == ((0.1, 0.3), (0.4, 0.5))
    assert (one.rho, one.p) == (None, None)
    assert one.problem == "a rank correlation takes at least 3 encoders, here are 2"


def test_compare_rankings_has_no_rho_if_all_means_are_equal():
    one = compare_rankings("STS", by_encoder((0.5, 0.5, 0.5)), by_encoder((0.1, 0.2, 0.3)))
    assert one.rho is None
    assert "the same mean score" in one.problem
