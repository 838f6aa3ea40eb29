"""The affine maps that a fitted step consists of."""

from transforms.base import Map
from transforms.linear import Affine, Normalize, Selection


def affine_parts(step: Map) -> list[Affine] | None:
    """Return the affine maps `(k, d)` of a fitted step without its normalizations; None if the step is not affine."""
    parts = []
    for primitive in step.primitives():
        if isinstance(primitive, Selection):
            parts.append(primitive.as_affine())
        elif isinstance(primitive, Affine):
            parts.append(primitive)
        elif not isinstance(primitive, Normalize):
            return None
    return parts
