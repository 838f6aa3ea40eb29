"""REZE's offline mathematics: which directions separate the sources, and how far each source is pulled back.

Relations r = [a; p] `(n, 2d)` of a frozen reference encoder → moments of every source → eigenspace of all →
what is done to each source in each of its directions → targets r̂ (Section 3.1 of the REZE paper, its Algorithm 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.finetuning.job import RegularizerSettings
from transforms.statistics import Moments

Array = NDArray[np.float64]

ROUNDING = 1e-12
"""Relative: without it, a share of 1 might never be reached, and sources on the band might lie beyond it."""


@dataclass(frozen=True)
class Shrinkage:
    """What is done to the relations of S sources in an eigenspace of D = 2d dimensions.

    Attributes:
        mean: u, `(D,)`.
        basis: W, `(D, D)`, eigenvectors in columns, by falling eigenvalue (Eq. 1).
        eigenvalues: λ, `(D,)`.
        source_means: μ_s in the eigenspace, `(S, D)`.
        center: m, `(D,)`.
        dispersion: v, `(D,)` (Eq. 2).
        active: k, the leading dimensions that may be shrunk (Eq. 3).
        dispersion_threshold: θ (Eq. 4).
        band: θ_j, `(D,)` (Eq. 5).
        shrink: α, `(S, D)`; 1 changes nothing (Eq. 6).
        shift: added in the eigenspace, `(S, D)`; zero unless sources are translated.
        variant: the dimensions that separate the sources: active, and of a dispersion above the threshold.
        clipped: factors that were outside [0, 1] before they were clipped.
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
        """The dimensions in which any source is changed."""
        touched = (self.shrink != 1).any(axis=0) | (self.shift != 0).any(axis=0)
        return np.flatnonzero(touched)

    def offsets(self) -> NDArray[np.float32]:
        """How far each source's mean lies from the centre in the variant dimensions, as relations `(S, D)`."""
        deviation = np.where(self.variant, self.source_means - self.center, 0.0)
        return (deviation @ self.basis.T).astype(np.float32)

    def apply(self, relations: NDArray[np.floating], sources: NDArray[np.int64]) -> NDArray[np.float32]:
        """r̂ = W A_s Wᵀ (r − u) + u of relations `(n, D)`, each by its source `(n,)` (Eq. 7), in float32."""
        changed = self.changed
        basis = self.basis[:, changed]
        coordinates = (relations.astype(np.float64) - self.mean) @ basis
        moved = coordinates * (self.shrink[sources][:, changed] - 1) + self.shift[sources][:, changed]
        return (relations + moved @ basis.T).astype(np.float32)


def fit_shrinkage(sources: Sequence[Moments], settings: RegularizerSettings) -> Shrinkage:
    """What to do to every source, from the moments of its relations.

    Args:
        sources: moments of the relations of each, of one width.
        settings: the paper's parameters.
    """
    pooled = merged(sources)
    eigenvalues, basis = eigenspace(pooled)
    means = np.stack([moments.mean - pooled.mean for moments in sources]) @ basis
    center = np.median(means, axis=0) if settings.center == "median" else means.mean(axis=0)
    deviation = means - center
    dispersion = (deviation**2).mean(axis=0)
    active = active_dimensions(eigenvalues, settings.variance_ratio)
    threshold = dispersion_threshold(dispersion[:active], settings)
    band = settings.scale * np.abs(deviation).mean(axis=0)
    beyond = np.abs(deviation) > band * (1 + ROUNDING)  # on the band itself the factor is 1
    variant = (np.arange(len(eigenvalues)) < active) & (dispersion > threshold)
    chosen = beyond & variant
    pull = settings.strength * (center + np.sign(deviation) * band - means)
    shrink, shift, clipped = np.ones_like(means), np.zeros_like(means), 0
    if settings.operation == "translate":
        shift = np.where(chosen, pull, 0.0)
    else:
        chosen &= np.abs(means) > settings.epsilon_denominator  # no factor moves a mean of zero
        factors = 1 + pull / denominators(means, settings)
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


def eigenspace(pooled: Moments) -> tuple[Array, Array]:
    """Eigenvalues, largest first, and eigenvectors of the covariance with ddof=0 (Eq. 1)."""
    values, vectors = np.linalg.eigh(pooled.covariance(ddof=0))
    return np.clip(values[::-1], 0, None), np.ascontiguousarray(vectors[:, ::-1])


def active_dimensions(eigenvalues: Array, ratio: float) -> int:
    """The fewest leading dimensions that explain the ratio of all variance (Eq. 3)."""
    total = eigenvalues.sum()
    if total <= 0:
        return 0
    explained = np.cumsum(eigenvalues) / total
    return min(int(np.searchsorted(explained, ratio * (1 - ROUNDING))) + 1, len(eigenvalues))


def dispersion_threshold(dispersion: Array, settings: RegularizerSettings) -> float:
    """θ = median + γ (MAD + ε) of the active dimensions' dispersions (Eq. 4); infinite where none is active."""
    if not len(dispersion):
        return float("inf")
    middle = float(np.median(dispersion))
    deviation = float(np.median(np.abs(dispersion - middle)))
    return middle + settings.scale * (deviation + settings.epsilon_threshold)


def denominators(means: Array, settings: RegularizerSettings) -> Array:
    """What Eq. 6 divides by, `(S, D)`; never zero."""
    lengths = np.maximum(np.abs(means) + settings.epsilon_denominator, np.finfo(np.float64).tiny)
    return lengths if settings.denominator == "literal" else np.where(means < 0, -lengths, lengths)


def merged(sources: Sequence[Moments]) -> Moments:
    """The moments of all relations."""
    pooled = Moments()
    for moments in sources:
        pooled.merge(moments)
    return pooled


def between_source_variance(sources: Sequence[Moments]) -> float:
    """The variance of relations that lies between the sources: Σ_s n_s/n ‖μ_s − u‖²."""
    pooled = merged(sources)
    return float(sum(one.count / pooled.count * ((one.mean - pooled.mean) ** 2).sum() for one in sources))
