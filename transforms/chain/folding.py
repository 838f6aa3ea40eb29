"""Multiplying neighbouring affine steps into one, so that a chain costs one product."""

from transforms.base import Map
from transforms.linear import Affine, Normalize, Selection


def fold_primitives(primitives: list[Map]) -> list[Map]:
    """Return the same map as few primitives, multiplied in float64.

    A normalization before bias-free maps that end in a normalization changes nothing and is
    dropped; one right after an affine map becomes part of it.

    Args:
        primitives: what `Map.primitives` returned, in order.
    """
    folded: list[Map] = []
    for position, primitive in enumerate(primitives):
        if isinstance(primitive, Normalize) and _is_redundant(primitives[position + 1 :]):
            continue
        merged = _merge(folded[-1], primitive) if folded else None
        if merged is None:
            folded.append(primitive)
        else:
            folded[-1] = merged
    return folded


def _is_redundant(following: list[Map]) -> bool:
    """Return whether a normalization followed by these steps makes no difference to the outputs."""
    for step in following:
        if isinstance(step, Normalize):
            return True
        if not isinstance(step, Selection) and not (isinstance(step, Affine) and step.bias is None):
            return False
    return False


def _merge(before: Map, step: Map) -> Map | None:
    """Return one primitive that applies two, multiplied in float64; None if there is none."""
    if isinstance(before, Affine) and not before.normalize:
        if isinstance(step, Affine):
            return before.then(step)
        if isinstance(step, Selection):
            return step.select_from(before)
        if isinstance(step, Normalize):
            return Affine(before.weight, before.bias, normalize=True)
    if isinstance(before, Selection):
        if isinstance(step, Affine):
            return before.as_affine().then(step)
        if isinstance(step, Selection):
            return Selection(step.dimensions, before.columns[step.columns], before.input_dimensions)
    return None
