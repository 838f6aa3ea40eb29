"""Retention: the share of the scores that reductions retain, as in the GeoPres paper."""

from dataclasses import dataclass

import numpy as np

from lathe.training.comparison import Array, Interval
from research.paper_findings.grid import Grid
from research.paper_findings.statistics import bootstrap_ratio

ALL = "all"
"""Key of all tasks beside the types of tasks."""
MIN_CONTROL_SCORE = 0.05
"""Minimum mean score of the raw vectors; a share of a smaller score is mostly noise."""
RIVAL = "pca"
"""Label of the reducer that others are compared with: centred PCA."""


@dataclass(frozen=True)
class Retention:
    """Share of the score that a reducer retains at one share of the dimensions, over encoders and tasks.

    Attributes:
        label: label of the reducer.
        share: output dimensions divided by input dimensions, rounded to four decimals.
        encoders: number of encoders.
        tasks: number of tasks that all reducers completed at every size.
        mean: normalized score M(f∘g)/M(g) (Eq. 2), M the mean of all tasks, with its interval.
        types: the same for each type of task.
        ahead: retained share minus that of centred PCA, paired by task, by type and over `all`; empty without PCA at
            this share.
    """

    label: str
    share: float
    encoders: int
    tasks: int
    mean: Interval
    types: dict[str, Interval]
    ahead: dict[str, Interval]

    @property
    def is_compared(self) -> bool:
        """Whether the reducer was compared with centred PCA, and is another one."""
        return bool(self.ahead) and self.label != RIVAL

    def types_apart(self, sign: int) -> list[str]:
        """List the types of tasks on which the reducer differs significantly from centred PCA in retained score.

        With sign 1 it retains more on them, with sign −1 less.
        """
        return [kind for kind, interval in self.ahead.items() if kind != ALL and interval.sign == sign]


def compute_retentions(grid: Grid) -> list[Retention]:
    """Compute the share of the raw vectors' score that each reducer and nested chain retains at each size.

    The result has the share over all tasks and by type, and the difference to centred PCA. Only tasks that all of them
    completed are used. The largest share of the dimensions comes first. Groups of tasks whose raw score is below
    `MIN_CONTROL_SCORE` for an encoder are left out; if all tasks together are below, the reducer has no entry at this
    size. The list is empty without a common task.
    """
    sized = {name: [m for m in e.methods.values() if m.size is not None] for name, e in grid.encoders.items()}
    sized = {name: methods for name, methods in sized.items() if methods}

    tasks = grid.common_tasks(sized)
    if not sized or not tasks:
        return []

    scores: dict[tuple[str, float], dict[str, Array]] = {}
    for encoder, methods in sized.items():
        width = grid.encoders[encoder].member.dimensions
        for method in methods:
            key = method.label, round((method.size or width) / width, 4)
            scores.setdefault(key, {})[encoder] = grid.scores(encoder, method.name, tasks)

    groups = {ALL: list(range(len(tasks)))} | grid.group_by_type(tasks)
    retentions = []
    for (label, share), columns in scores.items():
        # rows, control and matched are (tasks, encoders), columns in the same order.
        rows = _stack_columns(columns)
        control = _stack_columns({name: grid.control_scores(name, tasks) for name in columns})
        rival = scores.get((RIVAL, share), {})
        matched = _stack_columns({name: rival[name] for name in columns}) if set(columns) <= set(rival) else None
        measurable = {
            name: positions
            for name, positions in groups.items()
            if (control[positions].mean(0) >= MIN_CONTROL_SCORE).all()
        }

        by_group = {
            name: bootstrap_ratio(rows[positions], control[positions]) for name, positions in measurable.items()
        }
        ahead = {
            name: bootstrap_ratio(rows[positions], control[positions], matched[positions])
            for name, positions in measurable.items()
            if matched is not None
        }
        if ALL in by_group:
            retentions.append(Retention(label, share, len(columns), len(tasks), by_group.pop(ALL), by_group, ahead))

    order = list(dict.fromkeys(retention.label for retention in retentions))
    return sorted(retentions, key=lambda retention: (-retention.share, order.index(retention.label)))


def _stack_columns(columns: dict[str, Array]) -> Array:
    return np.stack(list(columns.values()), axis=1)
