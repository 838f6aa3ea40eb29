"""Audit from scores: whether removing a random direction is harmless, and where R2's difference is an outlier."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from research.paper_findings.grid import Grid
from research.paper_findings.statistics import shares_beyond, standardize

R2, RANDOM = "R2", "random direction"
"""Labels of the two methods that are compared here, as in `methods.DEBIASING`."""


@dataclass(frozen=True)
class RandomControl:
    """Effect of removing a random direction on one encoder's scores, by seed (the mean-bias paper's Appendix F).

    Attributes:
        encoder: name of the encoder.
        tasks: number of tasks that all seeds, and R2, completed.
        differences: mean difference to raw vectors in points (hundredths of a score), by method name, one for each
            seed.
        mean: mean of these differences.
        std: their standard deviation among seeds, over n − 1; None for one seed.
        r2: R2's mean difference on the same tasks, in points; None if R2 was not evaluated.
    """

    encoder: str
    tasks: int
    differences: Mapping[str, float]
    mean: float
    std: float | None
    r2: float | None


@dataclass(frozen=True)
class EncoderProfile:
    """Shares of an encoder's tasks on which R2's difference is an outlier: z > 2 (`up`), z < −2 (`down`).

    Table 6.
    """

    encoder: str
    mean_norm: float | None
    tasks: int
    up: float
    down: float


@dataclass(frozen=True)
class TaskProfile:
    """Shares of encoders whose R2 difference on a task is an outlier: z > 2 (`up`), z < −2 (`down`).

    Table 7.
    """

    task: str
    type: str
    encoders: int
    up: float
    down: float


@dataclass(frozen=True)
class Profile:
    """Outliers of R2's differences (the mean-bias paper's Appendices M and N, its Tables 6 and 7).

    An encoder's difference on a task is an outlier if it lies more than 2 standard deviations, over the encoder's
    tasks, from its mean difference: z = (Δ − Δ̄) / s_Δ, as the captions of the tables say; σ_cell in the paper's text
    is of a family of tasks. This is no significance test: it says more or less than usual, not better or worse than raw
    vectors.

    Attributes:
        encoders: shares by encoder, in the order requested.
        tasks: shares by task, in the order of the suite.
        z: z-score by encoder and task.
    """

    encoders: Sequence[EncoderProfile]
    tasks: Sequence[TaskProfile]
    z: Mapping[str, Mapping[str, float]]


def measure_random_controls(grid: Grid) -> list[RandomControl]:
    """Average the score difference between removing a random direction and raw vectors, per encoder, beside R2's.

    The averages are over the tasks that all seeds, and R2 if it was evaluated, completed. An encoder without results of
    a random direction, or without such a task, is left out.
    """
    found = []
    for encoder in grid.encoders:
        seeds, rivals = grid.methods(encoder, RANDOM), grid.methods(encoder, R2)
        tasks = grid.complete_tasks(encoder, [*seeds, *rivals])
        if not seeds or not tasks:
            continue
        control = grid.control_scores(encoder, tasks)
        gains = {m.name: float(100 * (grid.scores(encoder, m.name, tasks) - control).mean()) for m in [*seeds, *rivals]}
        each = [gains[seed.name] for seed in seeds]
        found.append(
            RandomControl(
                encoder=encoder,
                tasks=len(tasks),
                differences={seed.name: gains[seed.name] for seed in seeds},
                mean=float(np.mean(each)),
                std=float(np.std(each, ddof=1)) if len(each) > 1 else None,
                r2=gains.get(R2),
            )
        )
    return found


def profile_outliers(grid: Grid) -> Profile:
    """Compute z-scores of each task's gain by R2 (mean removal) over the raw vectors, and the shares of outliers.

    Outliers are more than 2 standard deviations from the mean; they are counted by encoder and by task. All parts are
    empty if R2 was not scored.
    """
    z: dict[str, dict[str, float]] = {}
    for encoder in grid.encoders:
        methods = grid.methods(encoder, R2)
        tasks = grid.complete_tasks(encoder, methods) if methods else []
        if tasks:
            differences = 100 * (grid.label_scores(encoder, R2, tasks) - grid.control_scores(encoder, tasks))
            z[encoder] = dict(zip(tasks, standardize(differences).tolist(), strict=True))
    encoders = [
        EncoderProfile(name, grid.encoders[name].mean_norm, len(row), *shares_beyond(np.array(list(row.values()))))
        for name, row in z.items()
    ]
    columns = {task: np.array([row[task] for row in z.values() if task in row]) for task in grid.tasks}
    by_task = [
        TaskProfile(task, grid.tasks[task].type, len(column), *shares_beyond(column))
        for task, column in columns.items()
        if len(column)
    ]
    return Profile(encoders, by_task, z)
