"""How far an evaluation is: its stages on each group of encoders as one fraction, with the time left."""

import time

from transforms.progress import Progress

SHARES = {"collect": 0.05, "encode": 0.3, "fit": 0.15, "score": 0.5}
"""Of the work on one group of encoders, for the progress; measured with the ladder on 20 small tasks."""


class StagedProgress:
    """Progress of stages as progress of the whole, which waits while an audit goes back to an earlier stage.

    Args:
        on_progress: told the fraction and a sentence.
        groups: of encoders, one after another.
    """

    def __init__(self, on_progress: Progress, groups: int = 1) -> None:
        self.on_progress = on_progress
        self.groups = groups
        self.furthest = 0.0
        self.begin_group(0)

    def begin_group(self, number: int) -> None:
        """The group with this number begins."""
        self.group, self.stage, self.begun = number, "", time.monotonic()

    def report(self, stage: str, fraction: float, sentence: str) -> None:
        """So much of a stage is done; the time left is that of the stage."""
        if stage != self.stage:
            self.stage, self.begun = stage, time.monotonic()
        names = list(SHARES)
        before = sum(SHARES[name] for name in names[: names.index(stage)])
        whole = (self.group + before + SHARES[stage] * fraction) / self.groups
        left = (time.monotonic() - self.begun) * (1 - fraction) / fraction if fraction > 0 else 0.0
        self.furthest = max(self.furthest, min(whole, 1.0))
        self.on_progress(self.furthest, sentence + (f", {in_time(left)} left" if left > 1 else ""))


def in_time(seconds: float) -> str:
    """Seconds, or minutes where they are many."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
