"""The metric in which inner products with queries are measured: what errors of a vector do to its scores."""

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.statistics.moments import Moments
from lathe.transforms.statistics.spectrum import Spectrum

MIN_EIGENVALUE = 1e-6
"""Smallest eigenvalue of the query metric relative to the largest: a direction that no query has keeps a little weight,
because later queries may have it."""


def query_metric_roots(queries: Moments, weighting: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return M_λ^½ and M_λ^−½, `(d, d)` each, with M_λ = (1 − λ)·I + λ·M/(tr M/d) and M = E[qqᵀ].

    The expected squared error of a score ⟨q, e⟩ over queries q is eᵀMe, the squared norm of M^½e. Eigenvalues are at
    least `MIN_EIGENVALUE` of the largest.

    Args:
        queries: moments of the queries.
        weighting: λ, from 0 (all directions alike) to 1 (by queries alone).
    """
    d = queries.dimensions
    moment = queries.second_moment()
    level = moment.trace() / d
    if not weighting or not np.isfinite(level) or level <= 0:
        return np.eye(d), np.eye(d)
    spectrum = Spectrum.of((1 - weighting) * np.eye(d) + weighting / level * moment)
    values = np.maximum(spectrum.values, MIN_EIGENVALUE * spectrum.values[0])
    axes = spectrum.directions
    return (axes.T * np.sqrt(values)) @ axes, (axes.T / np.sqrt(values)) @ axes
