"""Lloyd–Max quantizers of the unit normal: the levels that minimize the mean squared error for 0 to 8 bits."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

MAX_BITS = 8
"""Largest number of bits of a coordinate: a cell number fits in a byte."""

TOLERANCE = 1e-13
"""Largest change of a level, in standard deviations, at which Newton's method stops."""

MAX_ITERATIONS = 100
"""Maximum number of Newton iterations; eight bits need 9."""


@dataclass(frozen=True, eq=False)
class _NormalQuantizer:
    """Scalar quantizer of the unit normal with 2^b cells.

    Attributes:
        bits: b.
        levels: `(2^b,)`, float64, ascending: the value that each cell stands for, in standard deviations.
        thresholds: `(2^b − 1,)`, float64: the boundaries between the cells, midway between neighbouring levels.
        distortion: mean squared error for a unit normal, in (0, 1].
    """

    bits: int
    levels: NDArray[np.float64]
    thresholds: NDArray[np.float64]
    distortion: float


@cache
def build_normal_quantizer(bits: int) -> _NormalQuantizer:
    """Compute the scalar quantizer with 2^bits levels of least squared error for the unit normal (Lloyd–Max).

    `bits` is from 0 to `MAX_BITS`. The conditions are from Lloyd (1982), *Least squares quantization in PCM*, and Max
    (1960), *Quantizing for minimum distortion*: a boundary lies midway between two levels, and a level is the mean of
    the normal in its cell. The normal's density is log-concave, so they have a single solution (Fleischer, 1964).
    Newton's method finds it.
    """
    if bits == 0:
        return _NormalQuantizer(0, np.zeros(1), np.zeros(0), 1.0)

    half = 2 ** (bits - 1)
    # Panter and Dite (1951): the best levels have a density near φ^(1/3), the density of a normal of variance 3.
    ranks = (torch.arange(half, dtype=torch.float64) + 0.5) / (2 * half) + 0.5
    positive = (math.sqrt(3) * torch.special.ndtri(ranks)).numpy()

    for _ in range(MAX_ITERATIONS):
        edges = _find_cell_edges(positive)
        mass, density = _compute_interval_probabilities(edges), _compute_normal_density(edges)
        means = (density[:-1] - density[1:]) / mass
        # With u_i = E[x | t_i < x < t_{i+1}], ∂u_i/∂t_{i+1} = φ(t_{i+1})(t_{i+1} − u_i)/p_i, and ∂u_i/∂t_i likewise
        # with the opposite sign; a boundary moves by half of what its two levels move.
        finite = np.where(np.isinf(edges), 0, edges)
        upper = density[1:] * (finite[1:] - means) / mass / 2
        lower = density[:-1] * (means - finite[:-1]) / mass / 2
        upper[-1] = lower[0] = 0  # the outermost boundaries, ∞ and 0, do not move
        jacobian = np.diag(upper + lower - 1) + np.diag(upper[:-1], 1) + np.diag(lower[1:], -1)
        change = np.linalg.solve(jacobian, positive - means)
        positive = positive + change
        if np.abs(change).max() < TOLERANCE:
            break

    levels = np.concatenate([-positive[::-1], positive])
    # E[(x − q)²] = E[x²] − E[q²], because every level is the mean of its cell.
    distortion = 1 - 2 * float((_compute_interval_probabilities(_find_cell_edges(positive)) * positive**2).sum())
    return _NormalQuantizer(bits, levels, (levels[1:] + levels[:-1]) / 2, distortion)


def compute_distortions() -> NDArray[np.float64]:
    """Return the mean squared errors of the Lloyd–Max quantizers of the unit normal with 0, 1, …, 8 bits, `(9,)`."""
    return np.array([build_normal_quantizer(bits).distortion for bits in range(MAX_BITS + 1)])


def build_threshold_table() -> NDArray[np.float64]:
    """Return the thresholds of the Lloyd–Max quantizers with 0 to 8 bits in one table `(512,)`.

    The thresholds of b bits begin at entry 2^b, and inf follows them.
    """
    return np.concatenate(
        [np.zeros(1), *([*build_normal_quantizer(b).thresholds, np.inf] for b in range(MAX_BITS + 1))]
    )


def _find_cell_edges(positive: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the boundaries of the cells `(k + 1,)` of positive levels `(k,)`: 0, the midpoints, and ∞."""
    return np.concatenate([[0.0], (positive[1:] + positive[:-1]) / 2, [np.inf]])


def _compute_normal_density(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the density φ(x) of the unit normal at each x, which is 0 at ∞."""
    density: NDArray[np.float64] = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return density


def _compute_interval_probabilities(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the unit normal's probability of each interval between neighbouring edges, `(k,)` for edges `(k + 1,)`."""
    # Upper tails keep their digits where Φ is near 1 and its differences cancel.
    tails = torch.special.erfc(torch.from_numpy(edges / math.sqrt(2))).numpy() / 2
    masses: NDArray[np.float64] = tails[:-1] - tails[1:]
    return masses
