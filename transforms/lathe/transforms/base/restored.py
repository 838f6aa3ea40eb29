"""Checks of tensors that were read from an artifact, before a transform gets them.

An artifact may come from somebody else: its digests are then right, and its tensors need not be what a fit gives.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from lathe.transforms.errors import ArtifactError

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
