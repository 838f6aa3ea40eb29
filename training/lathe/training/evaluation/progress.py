"""Progress of an evaluation: stages on each group of encoders as one fraction, with the remaining time."""

import time

from lathe.transforms.progress import Progress

SHARES = {"collect": 0.05, "encode": 0.3, "fit": 0.15, "score": 0.5}
"""Share of each stage in the work on one group of encoders, measured with the debiasing methods on 20 small tasks."""


class StagedProgress:
    """Converter of the progress in a stage of the work on a group of encoders to that of the whole evaluation.

    The stages are `collect`, `encode`, `fit` and `score`. The progress never falls: it waits while an inspection
    returns to an earlier stage.

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
        """Call `on_progress` with the progress of the whole evaluation, now that a `fraction` of a stage is done.

        The message is `sentence`, with the estimated time left in the stage if that is over a second. Another stage
        than at the last call restarts the clock.
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
