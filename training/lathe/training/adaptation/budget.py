"""The seconds that an adaptation may take, over all its runs."""

import json
import time
from pathlib import Path

from lathe.transforms.files import read_json_file, replace_synced

FILE = "budget.json"
"""Name of the file with the seconds that earlier runs took, and with what was decided by the budget."""


class Budget:
    """A budget of seconds, of which stopped runs of the same adaptation have used a part.

    Args:
        seconds: the budget; None for no limit.
        folder: workspace folder of the adaptation.
    """

    def __init__(self, seconds: float | None, folder: Path) -> None:
        self.seconds = seconds
        self.path = folder / FILE
        self.begun = time.monotonic()
        try:
            self.stored = read_json_file(self.path)
        except FileNotFoundError:
            self.stored = {"spent": 0.0, "queries": {}, "seconds": {}}
        self.spent_before = float(self.stored["spent"])

    @property
    def left(self) -> float:
        """Seconds that are left, infinite without a limit."""
        if self.seconds is None:
            return float("inf")
        return self.seconds - self.spent_before - (time.monotonic() - self.begun)

    def decide_queries(self, rung: str, count: int, seconds_each: float, reserved: float) -> int:
        """Return how many of `count` queries a rung may train on. The decision is stored, because a training that was
        stopped can be resumed with the same queries only.

        Args:
            rung: name of the rung.
            count: number of queries that there are.
            seconds_each: estimated seconds of the training for a query.
            reserved: seconds that are needed afterwards.
        """
        decided: dict[str, int] = self.stored["queries"]
        if rung not in decided:
            affordable = (self.left - reserved) / max(seconds_each, 1e-9)
            decided[rung] = int(max(0, min(count, affordable)))
            self.save()
        return decided[rung]

    def add_seconds(self, rung: str, seconds: float) -> float:
        """Add seconds to those that a rung took in earlier runs, and return the sum."""
        taken: dict[str, float] = self.stored["seconds"]
        taken[rung] = taken.get(rung, 0.0) + seconds
        self.save()
        return taken[rung]

    def save(self) -> None:
        """Write to disk how many seconds are spent."""
        spent = self.spent_before + time.monotonic() - self.begun
        replace_synced(self.path, json.dumps(self.stored | {"spent": spent}).encode())
