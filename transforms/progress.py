"""Progress callbacks: how long work tells its caller how far it has come."""

from collections.abc import Callable

Progress = Callable[[float, str], None]
"""Called with the share of the work that is done, in [0, 1], and a message about it."""


def no_progress(_fraction: float, _message: str) -> None:
    """Ignore the progress."""


def part_of(on_progress: Progress, start: float, end: float) -> Progress:
    """Return a callback that reports the progress of one part of the work as progress of the whole.

    Args:
        on_progress: called with the progress of the whole.
        start: share of the whole at which the part begins.
        end: share of the whole at which the part ends.
    """

    def report(fraction: float, message: str) -> None:
        on_progress(start + (end - start) * fraction, message)

    return report
