"""Progress of an evaluation: stages on each group of encoders as one fraction, with the remaining time."""

import time

from transforms.progress import Progress

SHARES = {"collect": 0.05, "encode": 0.3, "fit": 0.15, "score": 0.5}
"""Share of each stage in the work on one group of encoders, measured with the debiasing methods on 20 small tasks."""


class StagedProgress:
    """Converter of the progress in a stage to that of the whole evaluation, which never falls.

    It waits while an inspection returns to an earlier stage.

    Args:
        on_progress: called with progress in [0, 1] and a message.
        groups: number of groups of encoders, which run one after another.
    """

    def __init__(self, on_progress: Progress, groups: int = 1) -> None:
        self.on_progress = on_progress
        self.groups = groups
        self.furthest = 0.0
        self.begin_group(0)

    def begin_group(self, number: int) -> None:
        """Start the group with this number, counted from 0: reset the stage and its clock."""
        self.group, self.stage, self.begun = number, "", time.monotonic()

    def report(self, stage: str, fraction: float, sentence: str) -> None:
        """Report that a `fraction` of a stage is done: call `on_progress` with the total progress and the time left.

        The time left is that of the stage, added to the message.
        """
        if stage != self.stage:
            self.stage, self.begun = stage, time.monotonic()
        names = list(SHARES)
        before = sum(SHARES[name] for name in names[: names.index(stage)])
        whole = (self.group + before + SHARES[stage] * fraction) / self.groups
        left = (time.monotonic() - self.begun) * (1 - fraction) / fraction if fraction > 0 else 0.0
        self.furthest = max(self.furthest, min(whole, 1.0))
        self.on_progress(self.furthest, sentence + (f", {format_seconds(left)} left" if left > 1 else ""))


def format_seconds(seconds: float) -> str:
    """Format seconds as "42 s", or from 100 s on as "5 min"."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
