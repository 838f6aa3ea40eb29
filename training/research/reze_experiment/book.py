"""Results on disk: a file for each unit, a line for each cell, so that a killed run loses one cell at most."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson


@dataclass(frozen=True)
class Result:
    """A cell: a method on a target, with so many of its rows.

    Attributes:
        unit: its key.
        target: the data set.
        task: of it.
        metric: of the score.
        method: see `arms.py`.
        rows: n of the fine-tuning; 0 is before it.
        learning_rate: of both stages.
        seed: of both.
        score: on the target's test.
        linear_probe: accuracy of mteb's logistic regression, of classifications.
        drift: mean 1 − cosine of held-out texts of the domain to where the base model had them, before any
            fine-tuning; None after it.
        isoscore: of those texts, likewise.
        steps: of the pre-finetuning; 0 without one.
        seconds_per_step: likewise.
    """

    unit: str
    target: str
    task: str
    metric: str
    method: str
    rows: int
    learning_rate: float
    seed: int
    score: float
    linear_probe: float | None
    drift: float | None = None
    isoscore: float | None = None
    steps: int = 0
    seconds_per_step: float | None = None


class Book:
    """The results of one unit.

    Args:
        folder: of all units' files.
        unit: its key.
    """

    def __init__(self, folder: Path, unit: str) -> None:
        self.path = folder / f"{unit}.jsonl"

    def read(self) -> list[Result]:
        """What is there; a line that a kill cut off is left out."""
        lines = self.path.read_bytes().splitlines() if self.path.is_file() else []
        found = []
        for line in lines:
            try:
                found.append(Result(**orjson.loads(line)))
            except (orjson.JSONDecodeError, TypeError):
                break
        return found

    def add(self, result: Result) -> None:
        """Another cell; what a kill cut off is overwritten."""
        known = self.read()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        written = self.path.with_suffix(".part")
        written.write_bytes(b"".join(as_line(one) for one in [*known, result]))
        written.replace(self.path)


def as_line(result: Result) -> bytes:
    """A result as JSON."""
    return orjson.dumps(asdict(result)) + b"\n"


def cells(results: Iterable[Result]) -> set[tuple[str, int]]:
    """Which methods with which rows are there."""
    return {(result.method, result.rows) for result in results}
