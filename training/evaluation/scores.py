"""Scores on disk, a line each, as they come: what a stopped evaluation goes on from."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

SCORES = "scores.jsonl"


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


class ScoreBook:
    """The scores of a folder.

    Args:
        folder: of the evaluation; made if missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / SCORES
        self.by_cell: dict[tuple[str, str, str], Score] = {}
        for score in read_scores(self.path):
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


def read_scores(path: Path) -> list[Score]:
    """Scores of a file; a line that a killed run left half written is passed over, and ended."""
    found: list[Score] = []
    if not path.exists():
        return found
    data = path.read_bytes()
    for line in data.splitlines():
        try:
            fields: dict[str, Any] = orjson.loads(line)
            found.append(Score(**fields))
        except (ValueError, TypeError):
            continue
    if data and not data.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
    return found
