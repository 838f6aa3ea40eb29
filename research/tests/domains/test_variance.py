import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from research.domains.variance import analyse_one_way, analyse_two_way

RANDOM = np.random.default_rng(0)
EFFECT = {"a": 0.0, "b": 0.1, "c": 0.3}


def sample_balanced_scores(interaction=0.0, samples=40):
    """Sample scores of three encoders.

    The second suite is harder by 0.2, and for c by `interaction` more.
    """
    return {
        (name, suite): effect
        - 0.2 * suite
        - interaction * suite * (name == "c")
        + 0.05 * RANDOM.standard_normal(samples)
        for name, effect in EFFECT.items()
        for suite in (0, 1)
    }


def compute_sums_of_squares(scores):
    """Compute the sums of squares of a balanced design from its means."""
    cube = np.array([[scores[name, suite] for suite in (0, 1)] for name in EFFECT])
    grand, n = cube.mean(), cube.shape[2]
    encoder = 2 * n * ((cube.mean(axis=(1, 2)) - grand) ** 2).sum()
    domain = 3 * n * ((cube.mean(axis=(0, 2)) - grand) ** 2).sum()
    cells = n * ((cube.mean(axis=2) - grand) ** 2).sum()
    residual = ((cube - cube.mean(axis=2, keepdims=True)) ** 2).sum()
    return {"encoder": encoder, "domain": domain, "encoder × domain": cells - encoder - domain, "residual": residual}


def test_analyse_two_way_equals_a_hand_computation_for_balanced_samples():
    scores = sample_balanced_scores(interaction=0.1)
    found = {one.name: one for one in analyse_two_way("STS", scores, (60, 70)).sources}
    sums, degrees = compute_sums_of_squares(scores), {"encoder": 2, "domain": 1, "encoder × domain": 2, "residual": 234}
    assert {name: one.sum_of_squares for name, one in found.items()} == pytest.approx(sums)
    assert {name: one.degrees for name, one in found.items()} == degrees
    for name in ("encoder", "domain", "encoder × domain"):
        f = (sums[name] / degrees[name]) / (sums["residual"] / 234)
        assert found[name].f == pytest.approx(f)
        assert found[name].p == pytest.approx(stats.f.sf(f, degrees[name], 234))
    assert (found["residual"].f, found["residual"].p) == (None, None)
    assert sum(one.share for one in found.values()) == pytest.approx(1)
    assert found["domain"].share == pytest.approx(sums["domain"] / sum(sums.values()))


def test_analyse_two_way_equals_statsmodels_type_2_for_unbalanced_samples():
    scores = sample_balanced_scores(interaction=0.1)
    for drop, cell in enumerate(scores):
        scores[cell] = np.where(np.arange(40) < 5 * drop, np.nan, scores[cell])
    rows = [(score, *cell) for cell, some in scores.items() for score in some[np.isfinite(some)]]
    frame = pd.DataFrame(rows, columns=["score", "encoder", "suite"])
    table = anova_lm(ols("score ~ C(encoder) * C(suite)", frame).fit(), typ=2)
    found = analyse_two_way("STS", scores, (60, 60)).sources
    assert [one.sum_of_squares for one in found] == pytest.approx(table["sum_sq"].tolist())
    assert [one.degrees for one in found] == table["df"].tolist() == [2, 1, 2, 159]
    assert [one.f for one in found[:3]] == pytest.approx(table["F"].tolist()[:3])
    residuals = [ols(f"score ~ {model}", frame).fit().ssr for model in ("C(suite)", "C(encoder) + C(suite)")]
    assert found[0].sum_of_squares == pytest.approx(residuals[0] - residuals[1])  # of type II: beside the other factor
    assert sum(one.share for one in found) == pytest.approx(1)


@pytest.mark.parametrize(
    ("scores", "problem"),
    [
        ({("a", 0): np.arange(5.0), ("a", 1): np.arange(5.0)}, "two factors take at least 2 encoders .* here are 1"),
        ({("a", 0): np.arange(5.0), ("b", 1): np.arange(5.0)}, "two factors take at least 2 encoders .* here are 0"),
        ({(e, s): np.full(5, 0.1 * s) for e in "ab" for s in (0, 1)}, "the same score"),
        ({(e, s): np.full(5, np.nan) for e in "ab" for s in (0, 1)}, "two factors take at least 2 encoders .* are 0"),
    ],
)
def test_analyse_two_way_gives_the_reason_for_what_cannot_be_analysed(scores, problem):
    found = analyse_two_way("STS", scores, (5, 5))
    assert found.sources == ()
    assert re.search(problem, found.problem)


def test_analyse_one_way_divides_the_mean_square_between_encoders_by_that_within():
    scores = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    found = analyse_one_way(1, "STS", scores)
    assert (found.suite, found.encoders, found.tasks) == (1, 2, 3)
    assert found.f == pytest.approx((6 * 0.15**2 / 1) / (4 * 0.01 / 4))
    assert found.p == pytest.approx(stats.f.sf(found.f, 1, 4))
