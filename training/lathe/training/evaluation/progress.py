"""Progress of an evaluation as one fraction over the stages on each encoder, with the remaining time."""

import time

from lathe.transforms.progress import Progress

SHARES = {"load": 0.05, "collect": 0.05, "encode": 0.4, "score": 0.5}
"""Share of each stage in the work on one encoder."""


class StagedProgress:
    """Converter of the progress in a stage on an encoder to that of the whole evaluation.

    The stages are `load`, `collect`, `encode` and `score`.

    Args:
        on_progress: called with progress in [0, 1] and a message.
        encoders: number of encoders, which run one after another.
    """

    def __init__(self, on_progress: Progress, encoders: int = 1) -> None:
        self.on_progress = on_progress
        self.encoders = encoders
        self.begin_encoder(0)

    def begin_encoder(self, number: int) -> None:
        """Begin the progress of the next encoder.
        The current stage is cleared, and the clock for the time left restarts.

        Args:
            number: number of the encoder, counted from 0.
        """
        self.encoder, self.stage, self.begun = number, "", time.monotonic()

    def report(self, stage: str, fraction: float, sentence: str) -> None:
        """Call `on_progress` with the progress of the whole evaluation in [0, 1] and a message.
        The progress is computed from the encoder, its stage, and the fraction of that stage that is done.

        Args:
            stage: current stage.
            fraction: fraction of the stage that is done.
            sentence: message.

        The message ends with the estimated time left in the stage if that is over a second. Another stage than at the
        last call restarts the clock.
        """
        if stage != self.stage:
            self.stage, self.begun = stage, time.monotonic()

        names = list(SHARES)
        before = sum(SHARES[name] for name in names[: names.index(stage)])
        progress = (self.encoder + before + SHARES[stage] * fraction) / self.encoders
        seconds_left = (time.monotonic() - self.begun) * (1 - fraction) / fraction if fraction > 0 else 0.0
        self.on_progress(
            min(progress, 1.0), sentence + (f", {format_seconds(seconds_left)} left" if seconds_left > 1 else "")
        )


def format_seconds(seconds: float) -> str:
    """Format seconds as "42 s", or from 100 s on as "5 min"."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
