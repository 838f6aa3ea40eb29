"""Scores and what is known of tasks on disk, a line each: what a stopped evaluation goes on from."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson

T = TypeVar("T")
SCORES, TASKS = "scores.jsonl", "tasks.jsonl"


@dataclass(frozen=True)
class Score:
    """One task, one encoder, one method.

    Attributes:
        task: its name.
        task_key: hash of its data and the limit.
        encoder: its name.
        fingerprint: of the encoder's output.
        method: its name.
        method_key: hash of the fitted map.
        score: mteb's main score, 0 to 1 for most; None after an error.
        metrics: all that mteb measured.
        seconds: that it took.
        error: why there is no score.
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

    @property
    def cell(self) -> tuple[str, str, str]:
        """What it is the score of, whatever it is called."""
        return self.task_key, self.fingerprint, self.method_key


@dataclass(frozen=True)
class Collected:
    """What is known of a task before it is evaluated.

    Attributes:
        task: its name.
        key: of the trial.
        type: mteb's.
        language: as the suite says.
        main_score: the metric's name.
        asked: prompt names with texts, while they are needed.
        texts: how many there were.
        warnings: what was left out or looks wrong.
        error: why it cannot be evaluated.
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


class ScoreBook:
    """The scores of a folder.

    Args:
        folder: of the evaluation; made if missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.tasks_path = folder / SCORES, folder / TASKS
        self.by_cell: dict[tuple[str, str, str], Score] = {}
        for score in read_lines(self.path, Score):
            self.by_cell[score.cell] = score

    def done(self, cell: tuple[str, str, str]) -> bool:
        """Whether a cell has a score; one with an error is tried again."""
        found = self.by_cell.get(cell)
        return found is not None and found.error is None

    def add(self, scores: Iterable[Score]) -> None:
        """Write scores down."""
        with self.path.open("ab") as file:
            for score in scores:
                self.by_cell[score.cell] = score
                file.write(orjson.dumps(asdict(score)) + b"\n")

    def describe(self, tasks: Iterable[Collected]) -> None:
        """Write down what is known of tasks, so that a finished one need not be read again."""
        with self.tasks_path.open("ab") as file:
            for task in tasks:
                file.write(orjson.dumps(asdict(replace(task, asked=(), texts=len(task.asked)))) + b"\n")

    def described(self) -> dict[str, Collected]:
        """What was written down of tasks, by their key."""
        return {task.key: task for task in read_lines(self.tasks_path, Collected)}


def read_lines(path: Path, kind: Callable[..., T]) -> list[T]:
    """A file's lines; one that a killed run left half written is passed over, and ended."""
    found: list[T] = []
    if not path.exists():
        return found
    data = path.read_bytes()
    for line in data.splitlines():
        try:
            fields: dict[str, Any] = orjson.loads(line)
            found.append(kind(**fields))
        except (ValueError, TypeError):
            continue
    if data and not data.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
    return found
