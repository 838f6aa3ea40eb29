"""What scores tell beside the comparison: whether a random direction is harmless, and where R2 stands out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from training.evaluation.grid import Grid
from training.evaluation.statistics import beyond, standardized

R2, RANDOM = "R2", "random direction"


@dataclass(frozen=True)
class RandomControl:
    """The random direction on one encoder, seed by seed (the mean-bias paper's Appendix F).

    Attributes:
        encoder: its name.
        tasks: that all seeds, and R2, completed.
        differences: mean difference to the raw vectors in points, by method.
        mean: of these.
        std: among seeds, over n − 1; None for one.
        r2: R2's mean difference on the same tasks; None where it was not compared.
    """

    encoder: str
    tasks: int
    differences: Mapping[str, float]
    mean: float
    std: float | None
    r2: float | None


@dataclass(frozen=True)
class EncoderProfile:
    """On which share of its tasks R2 stands out of an encoder's own differences, up and down (Table 6)."""

    encoder: str
    mean_norm: float | None
    tasks: int
    up: float
    down: float


@dataclass(frozen=True)
class TaskProfile:
    """On which share of the encoders R2 stands out on a task, up and down (Table 7)."""

    task: str
    type: str
    encoders: int
    up: float
    down: float


@dataclass(frozen=True)
class Profile:
    """Where R2 stands out (the mean-bias paper's Appendices M and N, its Tables 6 and 7).

    An encoder's difference on a task stands out beyond 2 standard deviations, over its tasks, of its own mean
    difference: z = (Δ − Δ̄) / s_Δ, as the captions of the tables say; the text's σ_cell is of a family of tasks. It is
    no test, and tells more or less than usual, not better or worse than raw.

    Attributes:
        encoders: in the order asked for.
        tasks: in the order of the suite.
        z: by encoder and task.
    """

    encoders: Sequence[EncoderProfile]
    tasks: Sequence[TaskProfile]
    z: Mapping[str, Mapping[str, float]]


def random_controls(grid: Grid) -> list[RandomControl]:
    """The random direction on every encoder that has it."""
    found = []
    for encoder in grid.encoders:
        seeds, rivals = grid.methods(encoder, RANDOM), grid.methods(encoder, R2)
        tasks = grid.complete(encoder, [*seeds, *rivals])
        if not seeds or not tasks:
            continue
        control = grid.control(encoder, tasks)
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


def profile(grid: Grid) -> Profile:
    """Where R2 stands out, on every encoder that has it; without any, all parts are empty."""
    z: dict[str, dict[str, float]] = {}
    for encoder in grid.encoders:
        methods = grid.methods(encoder, R2)
        tasks = grid.complete(encoder, methods) if methods else []
        if tasks:
            differences = 100 * (grid.label_scores(encoder, R2, tasks) - grid.control(encoder, tasks))
            z[encoder] = dict(zip(tasks, standardized(differences).tolist(), strict=True))
    encoders = [
        EncoderProfile(name, grid.encoders[name].mean_norm, len(row), *beyond(np.array(list(row.values()))))
        for name, row in z.items()
    ]
    columns = {task: np.array([row[task] for row in z.values() if task in row]) for task in grid.tasks}
    by_task = [
        TaskProfile(task, grid.tasks[task].type, len(column), *beyond(column))
        for task, column in columns.items()
        if len(column)
    ]
    return Profile(encoders, by_task, z)
