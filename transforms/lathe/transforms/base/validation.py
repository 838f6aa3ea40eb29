"""Checks of parameters, and of tensors that were read from an artifact, before a transform gets them.

A check of a parameter raises `StepError` with the transform's kind, the parameter and its value. An artifact may come
from somebody else: its digests are then right, and its tensors need not be what a fit gives.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lathe.transforms.errors import ArtifactError, StepError

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


Shape = tuple[str | int, ...]
"""Shape of a tensor: each axis as its length, or as a name. Axes with one name have one length, of at least 1."""


def require_restorable(kind: str, expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Check that tensors read from an artifact have the names and dtypes of a transform's buffers, and are finite.

    Args:
        kind: kind of the transform, for the message.
        expected: the transform's buffers before its fit, by name.
        tensors: the tensors from the artifact, by name.

    Raises:
        ArtifactError: if they have not.
    """
    if set(tensors) != set(expected):
        raise ArtifactError(f"{kind} needs the tensors {sorted(expected)}, the artifact has {sorted(tensors)}")

    for name, tensor in tensors.items():
        dtype = expected[name].dtype
        if tensor.dtype != dtype:
            raise ArtifactError(f"the tensor {name!r} of {kind} is of dtype {tensor.dtype}; it must be {dtype}")
        if not torch.isfinite(tensor).all():
            raise ArtifactError(f"the tensor {name!r} of {kind} is not finite")


def require_shapes(kind: str, shapes: Mapping[str, Shape], tensors: Mapping[str, Tensor]) -> None:
    """Check that tensors have the shapes that a transform declares for its buffers. An axis named in several shapes
    must have one length.

    Args:
        kind: kind of the transform, for the message.
        shapes: shape of each buffer by name; buffers without one are not checked.
        tensors: the tensors by name.

    Raises:
        ArtifactError: if they have not.
    """
    lengths: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in tensors:
            continue

        shape_found = tuple(tensors[name].shape)
        # An axis that several buffers name has one length, which the first of them sets.
        fits = len(shape_found) == len(shape) and all(
            0 < length == (axis if isinstance(axis, int) else lengths.setdefault(axis, length))
            for axis, length in zip(shape, shape_found, strict=True)
        )
        if not fits:
            expected = ", ".join(str(lengths.get(axis, axis) if isinstance(axis, str) else axis) for axis in shape)
            raise ArtifactError(f"the tensor {name!r} of {kind} has the shape {shape_found}; it must be ({expected})")


def require_entries(kind: str, name: str, tensor: Tensor, low: float, high: float) -> None:
    """Check that all entries of a tensor lie from `low` to `high`, both included. Raises `ArtifactError` otherwise."""
    outside = (tensor < low) | (tensor > high)
    if outside.any():
        value = tensor[outside].flatten()[0].item()
        raise ArtifactError(f"the tensor {name!r} of {kind} holds {value:g}; it must be from {low:g} to {high:g}")
