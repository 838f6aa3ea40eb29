"""Multiplying neighbouring affine steps into one, so that a chain costs one product."""

from transforms.base.transform import Transform
from transforms.linear.affine import Affine
from transforms.linear.normalize import Normalize
from transforms.linear.projection import Selection


def fold_primitives(primitives: list[Transform]) -> list[Transform]:
    """The same map with as few steps as it takes, in float64.

    A normalisation before bias-free maps that end in a normalisation changes nothing and is
    dropped; one right after an affine map becomes part of it.

    Args:
        primitives: what `Transform.primitives` gave, in order.
    """
    folded: list[Transform] = []
    for position, primitive in enumerate(primitives):
        if isinstance(primitive, Normalize) and cancels(primitives[position + 1 :]):
            continue
        merged = merge(folded[-1], primitive) if folded else None
        if merged is None:
            folded.append(primitive)
        else:
            folded[-1] = merged
    return folded


def cancels(following: list[Transform]) -> bool:
    """Whether a normalisation followed by these steps makes no difference to the output."""
    for step in following:
        if isinstance(step, Normalize):
            return True
        if not isinstance(step, Selection) and not (isinstance(step, Affine) and step.bias is None):
            return False
    return False


def merge(before: Transform, step: Transform) -> Transform | None:
    """One primitive that does two, multiplied in float64; None if there is none."""
    if isinstance(before, Affine) and not before.normalize:
        if isinstance(step, Affine):
            return before.then(step)
        if isinstance(step, Selection):
            return step.of(before)
        if isinstance(step, Normalize):
            return Affine(before.weight, before.bias, normalize=True)
    if isinstance(before, Selection):
        if isinstance(step, Affine):
            return before.affine().then(step)
        if isinstance(step, Selection):
            return Selection(step.dimensions, before.columns[step.columns], before.input_dimensions)
    return None
