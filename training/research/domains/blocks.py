"""The scores of a suite by type of task, as far as encoders can be compared on them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from training.evaluation.grid import Grid
from training.evaluation.methods import CONTROL
from training.evaluation.statistics import Array


@dataclass(frozen=True)
class Block:
    """Raw vectors' scores of a type of task in one suite.

    Attributes:
        type: mteb's.
        encoders: that have a score of the type.
        tasks: that all of these completed.
        scores: `(encoders, tasks)`.
        lacking: encoders without any score of the type, which are left out of it.
        incomplete: by task, the encoders that failed on it, for which it is left out for all.
    """

    type: str
    encoders: tuple[str, ...]
    tasks: tuple[str, ...]
    scores: Array
    lacking: tuple[str, ...]
    incomplete: Mapping[str, tuple[str, ...]]

    @property
    def means(self) -> dict[str, float]:
        """The mean score of each encoder; empty where no task is complete."""
        if not self.tasks:
            return {}
        return dict(zip(self.encoders, self.scores.mean(axis=1).tolist(), strict=True))

    def scores_of(self, encoders: Sequence[str]) -> Array:
        """The scores `(n, tasks)` of some of the encoders."""
        return self.scores[[self.encoders.index(encoder) for encoder in encoders]]


def blocks_of(grid: Grid) -> dict[str, Block]:
    """A block for each type of task that has any score."""
    found = {}
    for type_, places in grid.types(list(grid.tasks)).items():
        block = block_of(grid, type_, [list(grid.tasks)[place] for place in places])
        if block is not None:
            found[type_] = block
    return found


def block_of(grid: Grid, type_: str, tasks: list[str]) -> Block | None:
    """The block of a type's tasks; None where nothing has a score."""
    known = {encoder: {task for task in tasks if scored(grid, encoder, task)} for encoder in grid.encoders}
    encoders = tuple(encoder for encoder, some in known.items() if some)
    if not encoders:
        return None
    missing = {task: tuple(encoder for encoder in encoders if task not in known[encoder]) for task in tasks}
    complete = tuple(task for task in tasks if not missing[task])
    return Block(
        type=type_,
        encoders=encoders,
        tasks=complete,
        scores=np.array([grid.control(encoder, complete) for encoder in encoders]),
        lacking=tuple(encoder for encoder in grid.encoders if encoder not in encoders),
        incomplete={task: failed for task, failed in missing.items() if failed},
    )


def scored(grid: Grid, encoder: str, task: str) -> bool:
    """Whether a task has a score that is a number."""
    return bool(np.isfinite(grid.values.get((encoder, CONTROL, task), np.nan)))


def left_out(title: str, blocks: Mapping[str, Block]) -> Iterator[str]:
    """What the blocks of a suite do without, a sentence each."""
    for block in blocks.values():
        for encoder in block.lacking:
            yield f"{title}: {encoder} has no score in {block.type} and is left out of it"
        for task, encoders in block.incomplete.items():
            yield f"{title}: {task} is left out of comparisons because it has no score on {', '.join(encoders)}"
