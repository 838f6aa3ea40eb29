"""How much of the variance of the scores goes with the encoder, and how much with the domain: analysis of variance.

*FinMTEB*, Section 6 and Table 13: two factors over bootstrap samples; Table 1's p: one factor over data sets.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from lathe.training.comparison import Array

FACTORS = {"C(encoder)": "encoder", "C(domain)": "domain", "C(encoder):C(domain)": "encoder × domain"}
"""Names of the factors, by the row labels of the statsmodels table."""
RESIDUAL = "residual"
"""Name of the residual row."""
MIN_SAMPLES = 2
"""Minimum number of scored samples of an encoder in a suite; a single one has no variance."""
MIN_SPREAD = 1e-12
"""Standard deviation below which the scores of a group count as equal: less is rounding error."""

Cell = tuple[str, int]
"""Name of an encoder, and the index of a suite: 0 or 1."""


@dataclass(frozen=True)
class Source:
    """Row of an analysis of variance table: one factor, the interaction or the residual.

    Attributes:
        name: `encoder`, `domain`, `encoder × domain` or `residual`.
        sum_of_squares: sum of squares, in squared scores.
        degrees: degrees of freedom.
        f: mean square divided by the residual mean square; None for the residual.
        p: p-value of the F statistic; None for the residual.
        share: sum of squares divided by the sum over all rows, η².
    """

    name: str
    sum_of_squares: float
    degrees: float
    f: float | None
    p: float | None
    share: float


@dataclass(frozen=True)
class TwoWay:
    """Two-way analysis of variance of sample scores by encoder and domain, for one task type.

    Attributes:
        type: task type.
        sources: rows of the table; empty if there is a problem.
        means: mean sample score of each encoder in both suites; None if there is a problem.
        examples: number of examples in the pool of each suite; None if none could be pooled.
        undefined: number of samples without a score, left out.
        left_out: encoders with fewer than 2 scored samples in a suite.
        problem: why there is no analysis, else None.
    """

    type: str
    sources: tuple[Source, ...] = ()
    means: Mapping[str, tuple[float, float]] | None = None
    examples: tuple[int, int] | None = None
    undefined: int = 0
    left_out: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class OneWay:
    """One-way analysis of variance of data set scores by encoder, for one task type of one suite.

    Attributes:
        suite: index of the suite, 0 or 1.
        type: task type.
        encoders: number of encoders.
        tasks: number of data sets per encoder.
        f: F statistic; None if there is a problem.
        p: p-value of the F statistic; None if there is a problem.
        problem: why there is no test, else None.
    """

    suite: int
    type: str
    encoders: int
    tasks: int
    f: float | None = None
    p: float | None = None
    problem: str | None = None


def analyse_two_way(type_: str, scores: Mapping[Cell, Array], examples: tuple[int, int]) -> TwoWay:
    """Run a two-way analysis of variance, `score ~ encoder * domain`, on the scores of samples.

    The sums of squares are of type II. Only encoders with at least 2 scored samples in both suites are used. The sums
    of squares of both factors equal those of the paper's model without the interaction, which it leaves in the
    residual. If the analysis is impossible, the result has a `problem` and no rows.

    Args:
        type_: task type.
        scores: sample scores `(b,)` by encoder and suite; NaN for a sample without a score.
        examples: number of examples in the pool of each suite.
    """
    both = [name for name, suite in scores if suite == 0 and (name, 1) in scores]
    finite = {cell: some[np.isfinite(some)] for cell, some in scores.items()}
    encoders = [name for name in both if min(len(finite[name, 0]), len(finite[name, 1])) >= MIN_SAMPLES]
    known = {(name, suite): finite[name, suite] for name in encoders for suite in (0, 1)}
    undefined = sum(len(scores[cell]) - len(some) for cell, some in known.items())
    left_out = tuple(name for name in both if name not in encoders)
    problem = _explain_unsuited(encoders, known)
    if problem:
        return TwoWay(type_, (), None, examples, undefined, left_out, problem)
    rows = [(score, name, suite) for (name, suite), some in known.items() for score in some.tolist()]
    model = ols("score ~ C(encoder) * C(domain)", pd.DataFrame(rows, columns=["score", "encoder", "domain"])).fit()
    means = {name: (float(known[name, 0].mean()), float(known[name, 1].mean())) for name in encoders}
    return TwoWay(type_, _build_sources(anova_lm(model, typ=2)), means, examples, undefined, left_out)


def _explain_unsuited(encoders: list[str], known: Mapping[Cell, Array]) -> str | None:
    """Return why the analysis is impossible: fewer than 2 encoders, or no variance within any group.

    Else None.
    """
    if len(encoders) < 2:
        return f"two factors take at least 2 encoders with samples in both suites, here are {len(encoders)}"
    if all(some.std() < MIN_SPREAD for some in known.values()):
        return "all samples of an encoder have the same score, so that nothing is left to compare with"
    return None


def _build_sources(table: pd.DataFrame) -> tuple[Source, ...]:
    """Convert a statsmodels `anova_lm` table into rows, with each share of the total sum of squares."""
    total = float(table["sum_sq"].sum())
    found = []
    for row, name in {**FACTORS, "Residual": RESIDUAL}.items():
        squares, degrees, f, p = (float(table.loc[row, column]) for column in ("sum_sq", "df", "F", "PR(>F)"))
        left = name == RESIDUAL
        found.append(Source(name, squares, degrees, None if left else f, None if left else p, squares / total))
    return tuple(found)


def analyse_one_way(suite: int, type_: str, scores: Array) -> OneWay:
    """Test whether the encoders' scores differ, by a one-way analysis of variance over data sets.

    This is the p of the paper's Table 1. The test treats the data sets of each encoder as independent of those of the
    others, although they are the same, so it detects less than a paired test. With fewer than 2 encoders or data sets,
    or without variance, the result has a `problem`.

    Args:
        suite: index of the suite, 0 or 1.
        type_: task type.
        scores: scores `(encoders, tasks)`.
    """
    encoders, tasks = scores.shape
    if encoders < 2 or tasks < 2:
        problem = f"it takes at least 2 encoders and 2 data sets, here are {encoders} and {tasks}"
        return OneWay(suite, type_, encoders, tasks, problem=problem)
    if (scores.std(axis=1) < MIN_SPREAD).all():
        return OneWay(suite, type_, encoders, tasks, problem="each encoder has one score on all data sets")
    test = stats.f_oneway(*scores)
    return OneWay(suite, type_, encoders, tasks, float(test.statistic), float(test.pvalue))
