"""What a fitted chain is applied as: affine maps multiplied into one, or the last module of a `SentenceTransformer`.

Runs of affine steps are multiplied into one, so that applying a chain costs one product.
"""

from lathe.transforms.base import Map
from lathe.transforms.linear import Affine, Normalize, Selection


def fold_primitives(primitives: list[Map]) -> list[Map]:
    """Merge neighbouring maps of a list into as few maps as possible with the same outputs.

    Matrices are multiplied in float64. A normalization before bias-free maps that end in a normalization changes
    nothing and is dropped; a normalization right after an affine map becomes part of that map.

    Args:
        primitives: maps in order, as `Map.primitives` returns them.

    Returns:
        A new list of maps.
    """
    folded: list[Map] = []
    for position, primitive in enumerate(primitives):
        if isinstance(primitive, Normalize) and _is_normalize_redundant(primitives[position + 1 :]):
            continue
        merged = _merge(folded[-1], primitive) if folded else None
        if merged is None:
            folded.append(primitive)
        else:
            folded[-1] = merged

    return folded


def _is_normalize_redundant(following: list[Map]) -> bool:
    """Return whether an L2 normalization before the maps `following` has no effect on their outputs.

    It has none if only linear maps (selections and affine maps without a bias) come before the next normalization.
    """
    for step in following:
        if isinstance(step, Normalize):
            return True
        # W(x/‖x‖) = Wx/‖x‖, a factor that the next normalization removes; a bias would not have that factor.
        if not isinstance(step, Selection) and not (isinstance(step, Affine) and step.bias is None):
            return False
    return False


def _merge(before: Map, step: Map) -> Map | None:
    """Return one affine map or selection with the outputs of `before` followed by `step`, or None if there is none."""
    # After a normalization, nothing can be merged into an affine map: W₂(y/‖y‖) has a factor for each row.
    if isinstance(before, Affine) and not before.normalize:
        if isinstance(step, Affine):
            return before.then(step)
        if isinstance(step, Selection):
            return step.select_from(before)
        if isinstance(step, Normalize):
            return before.normalized()

    if isinstance(before, Selection):
        if isinstance(step, Affine):
            return before.as_affine().then(step)
        if isinstance(step, Selection):
            return Selection(step.dimensions, before.columns[step.columns], before.input_dimensions)

    return None


def list_affine_maps(step: Map) -> list[Affine] | None:
    """Return the affine maps of a fitted step in order, without normalizations, None if it has other maps.

    Selections become affine maps.

    Returns:
        The maps, or None if the step has other maps too. The list is empty if the step only normalizes.
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
