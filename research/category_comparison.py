"""Scores of a trained encoder against its base, by category of tasks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from statsmodels.stats.multitest import multipletests

from lathe.training.comparison import Interval
from research.paper_findings.statistics import bootstrap_ratio, paired_test

ALL = "all"
"""Name of the category that holds all tasks of a suite."""
SIGNIFICANT = 0.05
"""Significance level α, as in Table 14 of the FinMTEB paper."""


@dataclass(frozen=True)
class TaskScores:
    """Main scores of one task, by the base model and by the adapted model.

    Attributes:
        task: name of the task.
        category: mteb's task type.
        base: main score of the base model.
        adapted: main score of the adapted model.
    """

    task: str
    category: str
    base: float
    adapted: float


@dataclass(frozen=True)
class CategoryComparison:
    """Comparison of both models over the tasks of one category, as in Table 14 of the FinMTEB paper.

    Attributes:
        name: mteb's task type, or `all`.
        tasks: number of tasks.
        base: mean score of the base model.
        adapted: mean score of the adapted model.
        p: p-value of the two-sided paired t-test over tasks; None for one task, or if all differences are equal.
        p_holm: p-value after Holm's correction over the categories of the suite; None for `all`.
        retention: mean adapted score over mean base score, with a bootstrap interval over tasks.
    """

    name: str
    tasks: int
    base: float
    adapted: float
    p: float | None
    p_holm: float | None
    retention: Interval

    @property
    def significant(self) -> bool:
        """Whether the difference is significant at α = .05, by `p_holm` if set, else by `p`.

        The result is False if both are None.
        """
        p = self.p if self.p_holm is None else self.p_holm
        return p is not None and p < SIGNIFICANT


def compare_categories(tasks: Sequence[TaskScores]) -> Iterator[CategoryComparison]:
    """Yield the comparison of each category, with Holm-corrected p-values.

    If there are several, then of all tasks.
    """
    groups: dict[str, list[TaskScores]] = {}
    for one in tasks:
        groups.setdefault(one.category, []).append(one)

    p = {name: paired_test(*_split_scores(some)).p for name, some in groups.items()}
    known = {name: value for name, value in p.items() if value is not None}
    corrected = dict(zip(known, multipletests(list(known.values()), method="holm")[1] if known else (), strict=True))

    for name, some in groups.items():
        yield _compare_category(name, some, p[name], corrected.get(name))
    if len(groups) > 1:
        yield _compare_category(ALL, tasks, paired_test(*_split_scores(tasks)).p, None)


def _compare_category(
    name: str, tasks: Sequence[TaskScores], p: float | None, p_holm: float | None
) -> CategoryComparison:
    """Compute mean scores and retention over some tasks, and return them with the given p-values."""
    after, before = _split_scores(tasks)
    retention = bootstrap_ratio(after[:, None], before[:, None])
    return CategoryComparison(name, len(tasks), float(before.mean()), float(after.mean()), p, p_holm, retention)


def _split_scores(tasks: Sequence[TaskScores]) -> tuple[Any, Any]:
    """Return the adapted model's scores and the base model's scores, `(n,)` each, in this order."""
    return np.array([one.adapted for one in tasks]), np.array([one.base for one in tasks])
