"""Results log of an evaluation: scores and tasks as JSON lines, from which a stopped run is resumed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lathe.training.journal import Journal

SCORES, TASKS = "scores.jsonl", "tasks.jsonl"
"""File names of the results log, in the output folder."""


@dataclass(frozen=True)
class Score:
    """Score of one method on one task with one encoder.

    Attributes:
        task: name of the task.
        task_key: hash of its data and the row limit.
        encoder: name of the encoder.
        fingerprint: hash of the encoder's output; see `Member.output`.
        method: name of the method.
        method_key: hash of the fitted map.
        score: mteb's main score, in [0, 1] for most tasks; None after an error.
        metrics: all metrics that mteb computed, by name.
        seconds: duration.
        error: reason why there is no score; None if there is one.
        units: number of queries, texts or pairs of the data set, see units.py; 0 without their values.
        values: values of the units in their order, or of groups of them.
    """

    task: str
    task_key: str
    encoder: str
    fingerprint: str
    method: str
    method_key: str
    score: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None
    units: int = 0
    values: list[float] = field(default_factory=list)

    @property
    def cell(self) -> tuple[str, str, str]:
        """Key of the score, independent of names: hashes of task, encoder output and method."""
        return self.task_key, self.fingerprint, self.method_key


@dataclass(frozen=True)
class TaskDescription:
    """Description of a task before its evaluation, or the reason why it cannot be evaluated.

    Attributes:
        task: name of the task.
        key: hash of its data and the row limit.
        type: task type of mteb.
        language: two-letter languages, separated by "-" or ",".
        main_score: name of the main metric.
        asked: (prompt name, text) pairs that the task encodes; empty when read from the log.
        texts: number of these pairs.
        warnings: sentences on left-out rows.
        error: reason why the task cannot be evaluated; None if it can.
    """

    task: str
    key: str
    type: str = ""
    language: str = ""
    main_score: str = ""
    asked: tuple[tuple[str | None, str], ...] = ()
    texts: int = 0
    warnings: tuple[str, ...] = ()
    error: str | None = None


class ResultsLog:
    """Results log of an evaluation in a folder, as JSON lines.

    Construction reads the existing scores.

    Args:
        folder: output folder, created if missing.

    Attributes:
        by_cell: latest score by `Score.cell`.
    """

    def __init__(self, folder: Path) -> None:
        self.scores, self.tasks = Journal(folder / SCORES, Score), Journal(folder / TASKS, TaskDescription)
        # Later lines replace earlier ones: a failed score that was tried again stands in the file twice.
        self.by_cell = {score.cell: score for score in self.scores.read()}

    def has_score(self, cell: tuple[str, str, str]) -> bool:
        """Return whether the log has a score without an error for a cell.

        A cell has the hashes of a task, an encoder's output and a method. Failed scores do not count, so that they are
        tried again.
        """
        score = self.by_cell.get(cell)
        return score is not None and score.error is None

    def add(self, scores: Sequence[Score]) -> None:
        """Append scores to the log on disk and to `by_cell`."""
        self.scores.append(scores)
        self.by_cell.update((score.cell, score) for score in scores)

    def read_tasks(self) -> dict[str, TaskDescription]:
        """Read the descriptions of tasks from the log, by task key.

        Of several entries with one key, the last counts.
        """
        return {task.key: task for task in self.tasks.read()}
