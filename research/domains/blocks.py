"""Scores of a suite as one matrix per task type, complete for all compared encoders."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lathe.training.comparison import Array
from lathe.training.evaluation.methods import CONTROL
from research.paper_findings.grid import Grid


@dataclass(frozen=True)
class Block:
    """Scores of the encoders' raw vectors on one task type of a suite, `(encoders, tasks)` without gaps.

    Attributes:
        type: task type, as mteb names it.
        encoders: names of the encoders that have at least one score of the type.
        tasks: names of the data sets on which all of these encoders have a score.
        scores: main scores `(encoders, tasks)`.
        lacking: encoders without any score of the type, which are left out.
        incomplete: for each data set that was left out, the encoders that have no score on it.
    """

    type: str
    encoders: tuple[str, ...]
    tasks: tuple[str, ...]
    scores: Array
    lacking: tuple[str, ...]
    incomplete: Mapping[str, tuple[str, ...]]

    @property
    def means(self) -> dict[str, float]:
        """Mean score of each encoder over the tasks, by name.

        The result is empty if no task is complete.
        """
        if not self.tasks:
            return {}
        return dict(zip(self.encoders, self.scores.mean(axis=1).tolist(), strict=True))

    def select_scores(self, encoders: Sequence[str]) -> Array:
        """Return the scores `(n, tasks)` of the named encoders, in the given order."""
        return self.scores[[self.encoders.index(encoder) for encoder in encoders]]


def build_blocks(grid: Grid) -> dict[str, Block]:
    """Build the score matrix of each task type, by type.

    A type without any score is left out.
    """
    found = {}
    for type_, places in grid.group_by_type(list(grid.tasks)).items():
        block = _build_block(grid, type_, [list(grid.tasks)[place] for place in places])
        if block is not None:
            found[type_] = block
    return found


def _build_block(grid: Grid, type_: str, tasks: list[str]) -> Block | None:
    """Build the score matrix of the tasks of one type.

    Encoders without any score are left out first, then the tasks on which a remaining encoder has no score.

    Returns:
        None if no encoder has a score on any of them.
    """
    known = {encoder: {task for task in tasks if _has_score(grid, encoder, task)} for encoder in grid.encoders}
    encoders = tuple(encoder for encoder, some in known.items() if some)
    if not encoders:
        return None
    missing = {task: tuple(encoder for encoder in encoders if task not in known[encoder]) for task in tasks}
    complete = tuple(task for task in tasks if not missing[task])
    return Block(
        type=type_,
        encoders=encoders,
        tasks=complete,
        scores=np.array([grid.control_scores(encoder, complete) for encoder in encoders]),
        lacking=tuple(encoder for encoder in grid.encoders if encoder not in encoders),
        incomplete={task: failed for task, failed in missing.items() if failed},
    )


def _has_score(grid: Grid, encoder: str, task: str) -> bool:
    """Return whether the encoder's raw vectors have a finite score on the task."""
    return bool(np.isfinite(grid.values.get((encoder, CONTROL, task), np.nan)))


def list_left_out(title: str, blocks: Mapping[str, Block]) -> Iterator[str]:
    """Yield a sentence for each encoder and data set that the blocks leave out, beginning with the suite's title."""
    for block in blocks.values():
        for encoder in block.lacking:
            yield f"{title}: {encoder} has no score in {block.type} and is left out of it"
        for task, encoders in block.incomplete.items():
            yield f"{title}: {task} is left out of comparisons because it has no score on {', '.join(encoders)}"
