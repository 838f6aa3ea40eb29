"""Change of the relations by REZE's shrinkage: variances and cosines."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.regularizers.reze import RELATIONS, Reze
from lathe.training.finetuning.regularizers.shrinkage import (
    Shrinkage,
    compute_source_moments,
    merge_moments,
    split_into_blocks,
)
from lathe.transforms.files import replace_synced
from lathe.transforms.statistics import Moments

GEOMETRY = "geometry.json"
"""Name of the file with what shrinking changed, in the folder of the targets."""


def write_geometry(regularizer: Reze, mixture: Mixture, folder: Path) -> None:
    """Write what the shrinkage of a prepared REZE changed to the folder of its targets, unless the file is there.

    Nothing is written if nothing was shrunk to make the targets.
    """
    if regularizer.shrinkage is None or (folder / GEOMETRY).is_file():
        return
    relations = np.load(folder / RELATIONS, mmap_mode="r")
    before = compute_source_moments(relations, mixture.sources, len(mixture.names))
    geometry = compare_geometry(relations, regularizer.targets, before, mixture)
    replace_synced(
        folder / GEOMETRY, orjson.dumps(to_json(regularizer.shrinkage, geometry), option=orjson.OPT_INDENT_2)
    )


@dataclass(frozen=True)
class Geometry:
    """Change of the relations (a pair's anchor and positive vector, concatenated) by REZE's shrinkage.

    Attributes:
        between: between-source variance, before and after.
        total: total variance, before and after.
        cosines: cosine of each pair's relation with its target, `(n,)`.
    """

    between: tuple[float, float]
    total: tuple[float, float]
    cosines: NDArray[np.float32]


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
    after = compute_source_moments(targets, mixture.sources, len(mixture.names))
    cosines = np.concatenate([row_cosines(relations[rows], targets[rows]) for rows in split_into_blocks(len(mixture))])
    return Geometry(
        between=(between_source_variance(before), between_source_variance(after)),
        total=(total_variance(before), total_variance(after)),
        cosines=cosines,
    )


def row_cosines(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cosine of each row of `a` with the same row of `b`, `(n,)` float32."""
    return np.asarray(np.vecdot(a, b) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)), np.float32)


def to_json(shrinkage: Shrinkage, geometry: Geometry) -> dict[str, float | int]:
    """Return the shrinkage's dimensions, variances before and after, and mean cosine as a JSON-serializable dict."""
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


def format_share(part: float, whole: float) -> str:
    """Format a part as a percentage of the whole, such as "40% of it", or "nothing to begin with" if the whole is 0."""
    return f"{part / whole:.0%} of it" if whole > 0 else "nothing to begin with"


def between_source_variance(sources: Sequence[Moments]) -> float:
    """Return the between-source variance of the relations, Σ_s n_s/n ‖μ_s − u‖²."""
    pooled = merge_moments(sources)
    return float(sum(moments.count / pooled.count * ((moments.mean - pooled.mean) ** 2).sum() for moments in sources))


def total_variance(sources: Sequence[Moments]) -> float:
    """Return the total variance of all sources' relations, the mean squared distance from their mean."""
    pooled = merge_moments(sources)
    return float(np.trace(pooled.scatter) / pooled.count)
