"""Checks of what transforms are made with; the messages name the kind and the parameter."""

from collections.abc import Sequence
from typing import Any

from transforms.errors import StepError

MAX_WHOLE = 65_536
"""Far past the width of any encoder, and of any batch that helps; more would only take memory."""

MAX_TRAINING_STEPS = 1_000_000
"""A thousand times what presets take, some hours of a worker that can be cancelled; more would only keep others out."""

MAX_SEED = 2**63 - 1
"""The largest that torch takes."""


def require_whole(kind: str, name: str, value: Any, at_least: int, at_most: int = MAX_WHOLE) -> None:
    """Raise `StepError` unless a parameter is a whole number within bounds, both included."""
    if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= at_most:
        raise StepError(f"{kind}: {name} must be a whole number from {at_least} to {at_most}, got {value!r}")


def require_seed(kind: str, seed: Any) -> None:
    """Raise `StepError` unless a seed is one that every generator takes."""
    require_whole(kind, "seed", seed, at_least=0, at_most=MAX_SEED)


def require_flag(kind: str, name: str, value: Any) -> None:
    """Raise `StepError` unless a parameter is true or false."""
    if not isinstance(value, bool):
        raise StepError(f"{kind}: {name} must be true or false, got {value!r}")


def require_rate(kind: str, name: str, value: Any) -> None:
    """Raise `StepError` unless a parameter is a fraction above 0 and up to 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise StepError(f"{kind}: {name} must lie between 0 and 1, got {value!r}")


def require_training(kind: str, steps: Any, batch: Any, learning_rate: Any, seed: Any, min_steps: int = 1) -> None:
    """Raise `StepError` unless what training in steps is asked for makes sense; None asks for nothing."""
    if steps is not None:
        require_whole(kind, "steps", steps, at_least=min_steps, at_most=MAX_TRAINING_STEPS)
    if batch is not None:
        require_whole(kind, "batch", batch, at_least=2)
    if learning_rate is not None:
        require_rate(kind, "learning_rate", learning_rate)
    require_seed(kind, seed)


def require_choice(kind: str, name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise `StepError` unless a parameter is one of some words."""
    if value not in choices:
        raise StepError(f"{kind}: {name} must be {' or '.join(choices)}, got {value!r}")


def require_between(kind: str, name: str, value: Any, low: float, high: float) -> None:
    """Raise `StepError` unless a parameter is a number from `low` to `high`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise StepError(f"{kind}: {name} must be a number from {low:g} to {high:g}, got {value!r}")
