"""Conversion of a fitted step to affine maps."""

from lathe.transforms.base import Map
from lathe.transforms.linear import Affine, Normalize, Selection


def affine_parts(step: Map) -> list[Affine] | None:
    """List a fitted step's maps as `Affine`s, without normalizations; return None if any other map is among them.

    Selections are converted to affine maps; the list is empty if the step only normalizes.
    """
    parts = []
    for primitive in step.primitives():
        if isinstance(primitive, Selection):
            parts.append(primitive.as_affine())
        elif isinstance(primitive, Affine):
            parts.append(primitive)
        # A normalization is left to the caller: moments cannot pass one, and a subspace is not changed by one.
        elif not isinstance(primitive, Normalize):
            return None
    return parts
