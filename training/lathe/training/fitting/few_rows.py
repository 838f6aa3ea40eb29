"""Fits on few rows: general vectors of the same encoder join the rows, with a weight that falls with their number."""

import numpy as np
import torch

from lathe.transforms.linear.whitening import compute_shrinkage_weight
from lathe.transforms.statistics import Gaussian, moments_of, unit_rows
from lathe.transforms.vectors import FloatArray

MAX_FEW_ROWS = 350
"""Largest number of rows that general vectors join; from 500 on, codes find as much without (benchmarks/codes.md)."""

MIN_WEIGHT = 0.02
"""Smallest weight of general vectors. With less they are left out, since rows would be repeated very often."""

GENERAL_SOURCE = "pydoc:topics"
"""Source of general texts, of which no certificate measures a chain that was fitted on other texts."""

LEANING_KINDS = frozenset({"codes", "pca"})
"""Kinds of steps that need a covariance, which few rows estimate badly. Whitening has a shrinkage of its own."""

SAMPLED_ROWS = 4000
"""Number of vectors that are sampled from a Gaussian, some ten for each dimension."""


def sample_unit_rows(gaussian: Gaussian) -> FloatArray:
    """Return `SAMPLED_ROWS` normalized vectors `(m, d)` from a Gaussian, which are the same at every call."""
    noise = np.random.default_rng(0).standard_normal((SAMPLED_ROWS, gaussian.dimensions), np.float32)
    *deviations, spread = np.sqrt(gaussian.variances)
    along = (noise @ gaussian.directions.T) * (np.array(deviations) - spread)
    rows = gaussian.mean + spread * noise + along @ gaussian.directions
    return unit_rows(torch.from_numpy(rows)).numpy()


def join_general_rows(rows: FloatArray, general: FloatArray) -> tuple[FloatArray, float]:
    """Join general vectors `(m, d)` of the same encoder to the rows of a fit `(n, d)`.

    Rows are repeated until the share of general vectors is the weight by which the rows' covariance is best shrunk
    towards the general covariance, by Ledoit and Wolf (2004): the expected squared error of the rows' covariance,
    relative to its squared distance from the general one.

    Returns:
        The rows to fit on, and the share in [0, 1) of general vectors among them.
    """
    weight = compute_shrinkage_weight(moments_of(rows), moments_of(general).covariance(ddof=0))
    if weight < MIN_WEIGHT:
        return rows, 0.0
    times = max(1, round((1 / weight - 1) * len(general) / len(rows)))
    joined = np.concatenate([np.repeat(rows, times, axis=0), general])
    return joined, len(general) / len(joined)
