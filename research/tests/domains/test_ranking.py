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
