"""Results logs on disk: a file per unit, a line per cell, so that a killed run loses at most one cell."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson


@dataclass(frozen=True)
class Result:
    """Result of one cell: a method on a target, with a number of fine-tuning rows.

    Attributes:
        unit: key of the unit.
        target: name of the target.
        task: task of the target.
        metric: name of the metric of `score`.
        method: name of the method; see `arms.py`.
        rows: number n of fine-tuning rows; 0 is before fine-tuning.
        learning_rate: learning rate of both stages.
        seed: seed of both stages.
        score: main score on the target's test.
        linear_probe: accuracy of mteb's logistic regression; None unless the target is a classification.
        drift: mean 1 − cosine between the held-out domain texts' vectors and those of the base model, before
            fine-tuning; None after it.
        isoscore: IsoScore of the vectors of these texts before fine-tuning; None after it.
        steps: number of pre-finetuning steps; 0 without pre-finetuning.
        seconds_per_step: mean duration of a pre-finetuning step; None without pre-finetuning.
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
    """Results log of one unit, a JSON lines file.

    Args:
        folder: folder of all units' files.
        unit: key of the unit.
    """

    def __init__(self, folder: Path, unit: str) -> None:
        self.path = folder / f"{unit}.jsonl"

    def read(self) -> list[Result]:
        """Read the stored results up to the first line that is not a valid result; empty without a file."""
        lines = self.path.read_bytes().splitlines() if self.path.is_file() else []
        found = []
        for line in lines:
            try:
                found.append(Result(**orjson.loads(line)))
            except (orjson.JSONDecodeError, TypeError):
                break
        return found

    def add(self, result: Result) -> None:
        """Append a result by rewriting the file atomically; a line cut off by a kill is dropped."""
        known = self.read()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        written = self.path.with_suffix(".part")
        written.write_bytes(b"".join(as_line(one) for one in [*known, result]))
        written.replace(self.path)


def as_line(result: Result) -> bytes:
    """Serialize a result as a JSON line."""
    return orjson.dumps(asdict(result)) + b"\n"


def cells(results: Iterable[Result]) -> set[tuple[str, int]]:
    """Return the set of (method, rows) that have results."""
    return {(result.method, result.rows) for result in results}
