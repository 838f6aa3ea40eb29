"""REZE's computation before training: the directions that separate the sources, and the shrinkage in them.

Relations r = [a; p] `(n, 2d)` of a frozen reference encoder → moments of each source → eigenspace of all relations →
factor or shift of each source in each direction → targets r̂ (Section 3.1 of the REZE paper, its Algorithm 1).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lathe.training.finetuning.regularizers.regularizer import RegularizerSettings
from lathe.transforms.statistics import Moments
from lathe.transforms.vectors import FloatArray

Array = NDArray[np.float64]

BLOCK_PAIRS = 16_384
"""Number of pairs whose relations are in memory at once."""
ROUNDING = 1e-12
"""Relative tolerance for rounding errors. Without it, a variance ratio of 1 might never be reached, and sources on the
edge of the band might count as outside."""


@dataclass(frozen=True)
class Shrinkage:
    """Shrinkage of the relations of S sources in their common eigenspace of D = 2d dimensions.

    The relation of a pair is the vector of its anchor followed by the vector of its positive.

    Attributes:
        mean: u, `(D,)`, mean of all relations.
        basis: W, `(D, D)`, eigenvectors in columns, by descending eigenvalue (Eq. 1).
        eigenvalues: λ, `(D,)`.
        source_means: μ_s in the eigenspace, relative to u, `(S, D)`.
        center: m, `(D,)`, centre of the source means.
        dispersion: v, `(D,)`, mean squared deviation of the source means from the centre (Eq. 2).
        active: k, number of leading dimensions that may be shrunk (Eq. 3).
        dispersion_threshold: θ (Eq. 4).
        band: θ_j, `(D,)`, deviation from the centre up to which a source is unchanged (Eq. 5).
        shrink: α, `(S, D)`, factor of each source; 1 changes nothing (Eq. 6).
        shift: shift of each source in the eigenspace, `(S, D)`; zero unless `operation` is `translate`.
        variant: mask `(D,)` of the dimensions that separate the sources: active, with a dispersion above the threshold.
        clipped: number of factors outside [0, 1] that clipping changed.
    """

    mean: Array
    basis: Array
    eigenvalues: Array
    source_means: Array
    center: Array
    dispersion: Array
    active: int
    dispersion_threshold: float
    band: Array
    shrink: Array
    shift: Array
    variant: NDArray[np.bool_]
    clipped: int

    @property
    def changed(self) -> NDArray[np.int64]:
        """Indices of the dimensions in which any source is scaled or shifted."""
        touched = (self.shrink != 1).any(axis=0) | (self.shift != 0).any(axis=0)
        return np.flatnonzero(touched)

    def offsets(self) -> NDArray[np.float32]:
        """Compute the offset of each source's mean from the centre of all source means, `(S, D)`.

        The offsets are in the coordinates of relations. Dimensions that do not separate the sources count as 0.
        """
        deviation = np.where(self.variant, self.source_means - self.center, 0.0)
        return (deviation @ self.basis.T).astype(np.float32)

    def apply(self, relations: NDArray[np.floating], sources: NDArray[np.int64]) -> NDArray[np.float32]:
        """Shrink relations towards the centre of all sources, and return the targets r̂, `(n, D)` float32.

        The targets are r̂ = W A_s Wᵀ (r − u) + u, plus the source's shift (Eq. 7).

        Args:
            relations: `(n, D)`.
            sources: index of each relation's source, `(n,)`.
        """
        changed = self.changed
        basis = self.basis[:, changed]
        coordinates = (relations.astype(np.float64) - self.mean) @ basis
        # W A Wᵀ (r − u) + u = r + W (A − 1) Wᵀ (r − u): only the changed directions are computed.
        moved = coordinates * (self.shrink[sources][:, changed] - 1) + self.shift[sources][:, changed]
        return (relations + moved @ basis.T).astype(np.float32)


def fit_shrinkage(sources: Sequence[Moments], settings: RegularizerSettings) -> Shrinkage:
    """Fit the shrinkage that moves the means of all sources towards their common centre.

    Eqs. 1 to 6 of the REZE paper. The directions are the eigenspace of all sources' relations together. Only the
    dimensions in `Shrinkage.variant` have factors other than 1, and only for sources outside the band around the
    centre. With `operation: translate`, shifts are computed instead of factors.

    Args:
        sources: moments of each source's relations, all of the same dimensions.
        settings: the paper's parameters.

    Returns:
        The directions, and the factor or shift of each source in each direction.
    """
    pooled = merge_moments(sources)
    # Eq. 1: the eigenspace of all sources' relations, largest eigenvalues first. Rounding can make them negative.
    values, vectors = np.linalg.eigh(pooled.covariance(ddof=0))
    eigenvalues, basis = np.clip(values[::-1], 0, None), np.ascontiguousarray(vectors[:, ::-1])
    means = np.stack([moments.mean - pooled.mean for moments in sources]) @ basis
    # means and deviation are (S, D). Eq. 2: dispersion of the sources in each direction.
    center = np.median(means, axis=0) if settings.center == "median" else means.mean(axis=0)
    deviation = means - center
    dispersion = (deviation**2).mean(axis=0)
    # Eqs. 3 to 5: active directions, threshold and band.
    active = count_active_dimensions(eigenvalues, settings.variance_ratio)
    threshold = compute_dispersion_threshold(dispersion[:active], settings)
    band = settings.scale * np.abs(deviation).mean(axis=0)
    beyond = np.abs(deviation) > band * (1 + ROUNDING)  # on the band itself the factor is 1
    variant = (np.arange(len(eigenvalues)) < active) & (dispersion > threshold)
    chosen = beyond & variant
    # Eq. 6: a mean outside the band is moved towards the edge of the band, by the share `strength` of the distance.
    pull = settings.strength * (center + np.sign(deviation) * band - means)
    shrink, shift, clipped = np.ones_like(means), np.zeros_like(means), 0

    if settings.operation == "translate":
        shift = np.where(chosen, pull, 0.0)
    else:
        chosen &= np.abs(means) > settings.epsilon_denominator  # a factor cannot move a mean of zero
        factors = 1 + pull / _compute_denominators(means, settings)
        clipped = int(((factors < 0) | (factors > 1))[chosen].sum()) if settings.clip else 0
        shrink = np.where(chosen, np.clip(factors, 0, 1) if settings.clip else factors, 1.0)

    return Shrinkage(
        mean=pooled.mean,
        basis=basis,
        eigenvalues=eigenvalues,
        source_means=means,
        center=center,
        dispersion=dispersion,
        active=active,
        dispersion_threshold=threshold,
        band=band,
        shrink=shrink,
        shift=shift,
        variant=variant,
        clipped=clipped,
    )


def count_active_dimensions(eigenvalues: Array, ratio: float) -> int:
    """Count the leading dimensions that explain the share `ratio` of the variance (Eq. 3), 0 without any variance."""
    total = eigenvalues.sum()
    if total <= 0:
        return 0
    explained = np.cumsum(eigenvalues) / total
    return min(int(np.searchsorted(explained, ratio * (1 - ROUNDING))) + 1, len(eigenvalues))


def compute_dispersion_threshold(dispersion: Array, settings: RegularizerSettings) -> float:
    """Compute the dispersion above which a dimension separates the sources (Eq. 4), inf without active dimensions.

    The threshold is θ = median + γ (MAD + ε).

    Args:
        dispersion: dispersion of the sources in each active dimension.
        settings: γ (`scale`) and ε.
    """
    if not len(dispersion):
        return float("inf")
    middle = float(np.median(dispersion))
    deviation = float(np.median(np.abs(dispersion - middle)))
    return middle + settings.scale * (deviation + settings.epsilon_threshold)


def _compute_denominators(means: Array, settings: RegularizerSettings) -> Array:
    """Compute the denominators of Eq. 6, `(S, D)`, which are never 0.

    The denominators are |μ| + ε, with the sign of μ if `denominator` is `signed`.
    """
    lengths = np.maximum(np.abs(means) + settings.epsilon_denominator, np.finfo(np.float64).tiny)
    return lengths if settings.denominator == "literal" else np.where(means < 0, -lengths, lengths)


def merge_moments(sources: Sequence[Moments]) -> Moments:
    """Merge the moments of all sources into new moments of all rows together."""
    pooled = Moments()
    for moments in sources:
        pooled.merge(moments)
    return pooled


def split_into_blocks(count: int) -> Iterator[slice]:
    """Yield slices of at most `BLOCK_PAIRS` rows, which together cover `count` rows."""
    for start in range(0, count, BLOCK_PAIRS):
        yield slice(start, min(start + BLOCK_PAIRS, count))


def compute_source_moments(relations: FloatArray, sources: NDArray[np.int64], count: int) -> list[Moments]:
    """Compute the moments of each source's relations, in the order of the sources, in one pass over the rows.

    Args:
        relations: `(n, D)`.
        sources: index of each row's source, `(n,)`.
        count: number of sources.
    """
    moments = [Moments() for _ in range(count)]
    for rows in split_into_blocks(len(relations)):
        block = np.asarray(relations[rows])
        for source in range(count):
            moments[source].update(block[sources[rows] == source])
    return moments
