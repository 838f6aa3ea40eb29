"""How much of the scores goes with the encoder, and how much with the domain: analysis of variance.

*FinMTEB*, Section 6 and Table 13: two factors over bootstrap samples; Table 1's p: one factor over data sets.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from training.evaluation.statistics import Array

FACTORS = {"C(encoder)": "encoder", "C(domain)": "domain", "C(encoder):C(domain)": "encoder × domain"}
"""Rows of statsmodels, as they are called here."""
RESIDUAL = "residual"
SAMPLES_LEAST = 2
"""Of an encoder in a suite, with a score; one has no spread."""
SPREAD_LEAST = 1e-12
"""Standard deviations below are rounding: all scores of a group are one."""

Cell = tuple[str, int]
"""An encoder, and the first suite (0) or the second (1)."""


@dataclass(frozen=True)
class Source:
    """A row of an analysis of variance.

    Attributes:
        name: encoder, domain, their interaction, or what is left.
        sum_of_squares: in squared scores.
        degrees: of freedom.
        f: the mean square over that of what is left; None for what is left itself.
        p: of the F statistic.
        share: of the sum of all squares, η².
    """

    name: str
    sum_of_squares: float
    degrees: float
    f: float | None
    p: float | None
    share: float


@dataclass(frozen=True)
class TwoWay:
    """Encoder and domain as factors of the scores of samples, for one type of task.

    Attributes:
        type: of the tasks.
        sources: the rows; empty where there is a problem.
        means: mean score of an encoder's samples in both suites.
        examples: in the pool of each suite.
        undefined: samples of these encoders that could not be measured and were left out.
        left_out: encoders with fewer than two samples in one suite that could be measured.
        problem: why there are no rows.
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
    """Encoders as the one factor of the scores of data sets.

    Attributes:
        suite: its place, 0 or 1.
        type: of the tasks.
        encoders: how many.
        tasks: data sets of each.
        f: of the test.
        p: of the test.
        problem: why there is no test.
    """

    suite: int
    type: str
    encoders: int
    tasks: int
    f: float | None = None
    p: float | None = None
    problem: str | None = None


def two_way(type_: str, scores: Mapping[Cell, Array], examples: tuple[int, int]) -> TwoWay:
    """Type II sums of squares of `score ~ encoder * domain`, over the encoders that have samples in both suites.

    The sums of both factors are those of the paper's model without the interaction, which it leaves in the residual.

    Args:
        type_: of the tasks.
        scores: of the samples `(b,)` by encoder and suite; NaN for one that could not be measured.
        examples: in the pool of each suite.
    """
    both = [name for name, suite in scores if suite == 0 and (name, 1) in scores]
    finite = {cell: some[np.isfinite(some)] for cell, some in scores.items()}
    encoders = [name for name in both if min(len(finite[name, 0]), len(finite[name, 1])) >= SAMPLES_LEAST]
    known = {(name, suite): finite[name, suite] for name in encoders for suite in (0, 1)}
    undefined = sum(len(scores[cell]) - len(some) for cell, some in known.items())
    left_out = tuple(name for name in both if name not in encoders)
    problem = unsuited(encoders, known)
    if problem:
        return TwoWay(type_, (), None, examples, undefined, left_out, problem)
    rows = [(score, name, suite) for (name, suite), some in known.items() for score in some.tolist()]
    model = ols("score ~ C(encoder) * C(domain)", pd.DataFrame(rows, columns=["score", "encoder", "domain"])).fit()
    means = {name: (float(known[name, 0].mean()), float(known[name, 1].mean())) for name in encoders}
    return TwoWay(type_, sources_of(anova_lm(model, typ=2)), means, examples, undefined, left_out)


def unsuited(encoders: list[str], known: Mapping[Cell, Array]) -> str | None:
    """Why samples cannot be analysed; None if they can."""
    if len(encoders) < 2:
        return f"two factors take at least 2 encoders with samples in both suites, here are {len(encoders)}"
    if all(some.std() < SPREAD_LEAST for some in known.values()):
        return "all samples of an encoder have the same score, so that nothing is left to compare with"
    return None


def sources_of(table: pd.DataFrame) -> tuple[Source, ...]:
    """The rows of a table of statsmodels."""
    total = float(table["sum_sq"].sum())
    found = []
    for row, name in {**FACTORS, "Residual": RESIDUAL}.items():
        squares, degrees, f, p = (float(table.loc[row, column]) for column in ("sum_sq", "df", "F", "PR(>F)"))
        left = name == RESIDUAL
        found.append(Source(name, squares, degrees, None if left else f, None if left else p, squares / total))
    return tuple(found)


def one_way(suite: int, type_: str, scores: Array) -> OneWay:
    """Whether encoders differ on data sets, scores `(encoders, tasks)`: the p of the paper's Table 1.

    The test takes the data sets of each encoder for others than those of the next, so it sees less than there is.
    """
    encoders, tasks = scores.shape
    if encoders < 2 or tasks < 2:
        problem = f"it takes at least 2 encoders and 2 data sets, here are {encoders} and {tasks}"
        return OneWay(suite, type_, encoders, tasks, problem=problem)
    if (scores.std(axis=1) < SPREAD_LEAST).all():
        return OneWay(suite, type_, encoders, tasks, problem="each encoder has one score on all data sets")
    test = stats.f_oneway(*scores)
    return OneWay(suite, type_, encoders, tasks, float(test.statistic), float(test.pvalue))
