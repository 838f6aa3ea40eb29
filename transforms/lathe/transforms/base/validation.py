"""Checks of parameters.

Each raises `StepError` with the transform's kind, the parameter and its value.
"""

from collections.abc import Sequence
from typing import Any

from lathe.transforms.errors import StepError

MAX_WHOLE = 65_536
"""Default upper bound of integer parameters: above the dimensions of any encoder and any useful batch size."""

MAX_TRAINING_STEPS = 1_000_000
"""Maximum number of training steps: a thousand times those of the presets, some hours of work."""

MAX_SEED = 2**63 - 1
"""Largest seed that torch accepts."""


def require_whole(kind: str, name: str, value: Any, at_least: int, at_most: int = MAX_WHOLE) -> None:
    """Check that a value is an integer from `at_least` to `at_most`.

    bools are rejected.

    Raises:
        StepError: if it is not.
    """
    # bool is a subclass of int: without the second test, `true` in JSON would count as 1.
    if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= at_most:
        raise StepError(f"{kind}: {name} must be a whole number from {at_least} to {at_most}, got {value!r}")


def require_seed(kind: str, seed: Any) -> None:
    """Raise `StepError` unless the seed is an integer from 0 to `MAX_SEED`."""
    require_whole(kind, "seed", seed, at_least=0, at_most=MAX_SEED)


def require_flag(kind: str, name: str, value: Any) -> None:
    """Raise `StepError` unless a value is a bool."""
    if not isinstance(value, bool):
        raise StepError(f"{kind}: {name} must be true or false, got {value!r}")


def _require_rate(kind: str, name: str, value: Any) -> None:
    """Raise `StepError` unless a value is a number in (0, 1]."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise StepError(f"{kind}: {name} must be a number in (0, 1], got {value!r}")


def require_training(kind: str, steps: Any, batch: Any, learning_rate: Any, seed: Any, min_steps: int = 1) -> None:
    """Check that the parameters of a training are in range: steps, batch, learning rate and seed. All but the seed may
    be None, which stands for the default of a preset.

    Args:
        kind: kind of the transform, for the message.
        steps: from `min_steps` to `MAX_TRAINING_STEPS`.
        batch: batch size, from 2 to `MAX_WHOLE`.
        learning_rate: in (0, 1].
        seed: from 0 to `MAX_SEED`.
        min_steps: smallest number of steps allowed.
    """
    if steps is not None:
        require_whole(kind, "steps", steps, at_least=min_steps, at_most=MAX_TRAINING_STEPS)
    if batch is not None:
        require_whole(kind, "batch", batch, at_least=2)
    if learning_rate is not None:
        _require_rate(kind, "learning_rate", learning_rate)
    require_seed(kind, seed)


def require_choice(kind: str, name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise `StepError` unless a value is one of `choices`."""
    if value not in choices:
        raise StepError(f"{kind}: {name} must be {' or '.join(choices)}, got {value!r}")


def require_between(kind: str, name: str, value: Any, low: float, high: float) -> None:
    """Check that a value is an int or a float from `low` to `high`, both included.

    bools are rejected.

    Raises:
        StepError: if it is not.
    """
    # `not low <= value` also rejects NaN, for which every comparison is False.
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise StepError(f"{kind}: {name} must be a number from {low:g} to {high:g}, got {value!r}")
