"""Progress callbacks of long computations."""

from collections.abc import Callable

Progress = Callable[[float, str], None]
"""A callback that is called with the fraction of the work done, in [0, 1], and a message."""


def no_progress(_fraction: float, _message: str) -> None:
    """Ignore progress, as the callback of callers that give none."""


def part_of(on_progress: Progress, start: float, end: float) -> Progress:
    """Return a progress callback for one part of the work, which passes its progress on to the callback for the whole.

    Progress 0 of the part becomes `start` of the whole, and progress 1 becomes `end`.

    Args:
        on_progress: callback for the whole work; called with the mapped progress and the same message.
        start: progress of the whole at which the part begins.
        end: progress of the whole at which the part ends.
    """

    def report(fraction: float, message: str) -> None:
        on_progress(start + (end - start) * fraction, message)

    return report
