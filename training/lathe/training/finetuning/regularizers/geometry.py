"""Change of the relations by REZE's shrinkage: variances, cosines, a table and sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.regularizers.shrinkage import (
    Array,
    Shrinkage,
    between_source_variance,
    blocks,
    source_moments,
    total_variance,
)
from lathe.transforms.statistics import Moments


@dataclass(frozen=True)
class Geometry:
    """Change of the relations (a pair's anchor and positive vector, concatenated) by REZE's shrinkage.

    Attributes:
        between: between-source variance, before and after.
        total: total variance, before and after.
        cosines: cosine of each pair's relation with its target, `(n,)`.
        source_cosines: mean of `cosines` for each source.
    """

    between: tuple[float, float]
    total: tuple[float, float]
    cosines: NDArray[np.float32]
    source_cosines: list[float]


def compare_geometry(
    relations: NDArray[np.float32], targets: NDArray[np.float32], before: Sequence[Moments], mixture: Mixture
) -> Geometry:
    """Compare the pairs' relations before shrinkage with the shrunk targets.
    The result has the variance between sources, the total variance, and the cosines of relations and targets.

    Args:
        relations: r, `(n, 2d)`.
        targets: r̂, `(n, 2d)`.
        before: moments of each source's relations.
        mixture: gives each pair's source.
    """
    after = source_moments(targets, mixture.sources, len(mixture.names))
    cosines = np.concatenate([row_cosines(relations[rows], targets[rows]) for rows in blocks(len(mixture))])
    sums = np.bincount(mixture.sources, weights=cosines, minlength=len(mixture.names))
    counts = np.bincount(mixture.sources, minlength=len(mixture.names))

    return Geometry(
        between=(between_source_variance(before), between_source_variance(after)),
        total=(total_variance(before), total_variance(after)),
        cosines=cosines,
        source_cosines=(sums / counts).tolist(),
    )


def row_cosines(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cosine of each row of `a` with the same row of `b`, `(n,)` float32."""
    return np.asarray(np.vecdot(a, b) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)), np.float32)


def pull_fractions(shrinkage: Shrinkage) -> Array:
    """Return by what fraction each source's mean is moved to the centre in each dimension, `(S, D)`.

    0 means unchanged. For scaled sources this is 1 − α, for shifted ones the shift as a share of the deviation from the
    centre.
    """
    deviation = shrinkage.source_means - shrinkage.center
    share = np.divide(-shrinkage.shift, deviation, out=np.zeros_like(deviation), where=deviation != 0)
    return np.where(shrinkage.shift != 0, share, 1 - shrinkage.shrink)


def to_json(shrinkage: Shrinkage, geometry: Geometry) -> dict[str, float | int]:
    """Return a JSON-serializable summary of the shrinkage.
    It has numbers of dimensions, variances before and after, and the mean cosine.
    """
    return {
        "dimensions": len(shrinkage.eigenvalues),
        "active": shrinkage.active,
        "changed": len(shrinkage.changed),
        "clipped": shrinkage.clipped,
        "dispersion_threshold": shrinkage.dispersion_threshold,
        "between_before": geometry.between[0],
        "between_after": geometry.between[1],
        "total_before": geometry.total[0],
        "total_after": geometry.total[1],
        "mean_cosine": float(geometry.cosines.mean()),
    }


def build_shrinkage_rows(mixture: Mixture, shrinkage: Shrinkage, geometry: Geometry) -> list[list[str]]:
    """Build the table of how each source is shrunk. Return its rows as lists of text, the header first.

    Columns: pairs, dimensions shrunk, mean and largest fraction of the way to the centre by which these are moved, and
    mean cosine of each pair's relation before and after.
    """
    share = pull_fractions(shrinkage)
    rows = [["source", "pairs", "dimensions shrunk", "mean pull there", "largest pull", "mean cos(r, r̂)"]]
    for source, name in enumerate(mixture.names):
        touched = share[source][share[source] != 0]
        rows.append(
            [
                name,
                f"{int((mixture.sources == source).sum()):,}",
                f"{len(touched):,}",
                f"{touched.mean():.2f}" if len(touched) else "–",
                f"{touched.max():.2f}" if len(touched) else "–",
                f"{geometry.source_cosines[source]:.3f}",
            ]
        )

    return rows


def summarize_shrinkage(shrinkage: Shrinkage, geometry: Geometry) -> list[str]:
    """Summarize the shrinkage in three sentences: dimensions and clipped factors, variances, and cosines.

    They give the numbers of active, separating and shrunk dimensions and of clipped factors; the variances before and
    after; and the mean cosine between relations and targets.
    """
    changed = int((pull_fractions(shrinkage) != 0).sum())
    between, total = geometry.between, geometry.total
    return [
        f"{shrinkage.active} of {len(shrinkage.eigenvalues)} dimensions are active, {shrinkage.variant.sum()} of them "
        f"separate the sources by more than the threshold {shrinkage.dispersion_threshold:.3g}; {changed:,} of "
        f"{shrinkage.shrink.size:,} (source, dimension) pairs are shrunk, {shrinkage.clipped:,} factors were clipped.",
        f"The variance between sources falls from {between[0]:.4f} to {between[1]:.4f} "
        f"({format_share(*between[::-1])}), the total "
        f"from {total[0]:.4f} to {total[1]:.4f} ({format_share(*total[::-1])}).",
        f"Targets are near where the relations were: cos(r, r̂) averages {np.mean(geometry.cosines):.3f}.",
    ]


def format_share(part: float, whole: float) -> str:
    """Format a part as a percentage of the whole, such as "40% of it", or "nothing to begin with" if the whole is 0."""
    return f"{part / whole:.0%} of it" if whole > 0 else "nothing to begin with"
