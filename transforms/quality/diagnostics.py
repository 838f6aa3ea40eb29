"""Diagnostics of a set of vectors: common direction, norms, spectrum, zero and duplicate rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transforms.errors import InputError
from transforms.quality.metrics import isoscore
from transforms.statistics import Moments, Spectrum, participation_ratio
from transforms.vectors import FloatArray, Vectors, finite_blocks

Diagnostics = dict[str, Any]

UNIT_TOLERANCE = 1e-3
"""A row whose norm is this close to 1 counts as unit; the norm audit of the mean-bias paper (its Appendix C)."""

SHARES = (0.5, 0.9, 0.95, 0.99)


def diagnose(vectors: Vectors) -> Diagnostics:
    """Describe the rows of an array, memmap or view `(n, d)`, in one pass.

    Norms are those of the rows as they are; everything else describes the rows at unit length.

    Returns:
        A JSON object:

        - `n`, `dimensions`; `zero_rows`; `duplicate_rows`: rows that repeat an earlier one.
        - `norms`: `{mean, std, min, max, unit}`, the last the share of rows of norm 1 ± 0.001.
        - `mean_norm`: ‖μ‖; `noise_floor`: √(tr Σ/n), its expected value if the true mean were zero.
        - `participation_ratio`: tr(C)²/‖C‖²_F, the number of directions the variance is spread over;
          `isoscore`: (that − 1)/(d − 1); `rank`.
        - `spectrum`: `[[i, share]]`, the share of the variance along the i-th direction;
          `dimensions_for`: number of directions that hold a share of the variance.
        - `alignment`: |cos| of μ̂ with the top direction, `centered` and `uncentered` (Appendix D
          of the mean-bias paper); null without mean or variance.

    Raises:
        InputError: for NaN, inf, no rows or a shape that is not `(n, d)`.
    """
    moments, norms, hashes = Moments(), [], []
    for block in finite_blocks(vectors):
        exact = block.astype(np.float64)
        lengths = np.linalg.norm(exact, axis=1)
        moments.update(exact / np.where(lengths == 0, 1, lengths)[:, None])
        norms.append(lengths)
        hashes.append(_row_hashes(block))
    if moments.count == 0:
        raise InputError("there are no rows to describe")
    lengths = np.concatenate(norms)
    return {
        "n": moments.count,
        "dimensions": moments.dimensions,
        "zero_rows": int((lengths == 0).sum()),
        "duplicate_rows": moments.count - len(np.unique(np.concatenate(hashes))),
        "norms": {
            "mean": float(lengths.mean()),
            "std": float(lengths.std()),
            "min": float(lengths.min()),
            "max": float(lengths.max()),
            "unit": float((np.abs(lengths - 1) <= UNIT_TOLERANCE).mean()),
        },
        **_moment_diagnostics(moments),
    }


def _moment_diagnostics(moments: Moments) -> Diagnostics:
    """Return the diagnostics that follow from moments; see `diagnose`."""
    covariance = moments.covariance(ddof=0)
    spectrum = Spectrum.of(covariance)
    total = spectrum.values.sum()
    shares = spectrum.values / total if total > 0 else spectrum.values
    held = shares.cumsum()
    d = moments.dimensions
    return {
        "mean_norm": moments.mean_norm(),
        "noise_floor": moments.noise_floor(),
        "participation_ratio": participation_ratio(covariance),
        "isoscore": isoscore(moments),
        "rank": spectrum.rank,
        "spectrum": [[i, float(shares[i - 1])] for i in _geometric_ranks(d)],
        "dimensions_for": {
            str(share): int(np.searchsorted(held, share * (1 - 1e-12)) + 1) if total > 0 else 0 for share in SHARES
        },
        "alignment": {
            "centered": centered_alignment(spectrum, moments.mean),
            "uncentered": uncentered_alignment(spectrum, moments.mean),
        },
    }


def centered_alignment(spectrum: Spectrum, mean: NDArray[np.float64]) -> float | None:
    """Return |cos(μ̂, u₁)| with the top eigenvector u₁ of the centred covariance."""
    norm = np.linalg.norm(mean)
    if norm == 0 or spectrum.rank == 0:
        return None
    return min(1.0, float(abs(spectrum.directions[0] @ mean) / norm))


def uncentered_alignment(spectrum: Spectrum, mean: NDArray[np.float64]) -> float | None:
    """Return |cos(μ̂, v₁)| with the top eigenvector v₁ of the uncentred second moment C + μμᵀ.

    In closed form from the spectrum of the centred C (*Correcting Mean Bias in Text Embeddings*,
    Appendix D): with αᵢ = uᵢ·μ̂, the largest eigenvalue λ* is the largest root of
    1 = ‖μ‖² Σ αᵢ²/(λ* − λᵢ), and v₁ ∝ Σ αᵢ/(λ* − λᵢ) uᵢ. It is found by bisection as λ₁ + t, t in (0, ‖μ‖²].
    """
    norm = float(np.linalg.norm(mean))
    if norm == 0:
        return None
    alpha = spectrum.directions @ (mean / norm)
    gaps = spectrum.values[0] - spectrum.values

    def excess(t: float) -> float:
        return norm**2 * float((alpha**2 / (t + gaps)).sum()) - 1

    low, high = norm**2 * 1e-18, norm**2
    if excess(low) <= 0:  # μ̂ is orthogonal to u₁, and too short to overtake it
        return float(abs(alpha[0]))
    for _ in range(200):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    top = alpha / (high + gaps)
    return min(1.0, float(abs(alpha @ top) / np.linalg.norm(top)))


def _row_hashes(block: FloatArray) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row's bytes: equal rows have equal hashes, others hardly ever."""
    block = block + block.dtype.type(0)  # −0 becomes 0
    words = np.ascontiguousarray(block).view(np.dtype(f"u{block.dtype.itemsize}")).astype(np.uint64)
    words ^= words >> np.uint64(29)  # 1.0 and 2.0 differ in high bits only, and a product moves no bit down
    factors = np.random.default_rng(0).integers(0, 2**64 - 1, words.shape[1], dtype=np.uint64) | np.uint64(1)
    mixed = (words + factors) * (factors >> np.uint64(7) | np.uint64(1))
    mixed ^= mixed >> np.uint64(31)
    return np.asarray((mixed * factors).sum(axis=1, dtype=np.uint64))


def _geometric_ranks(d: int) -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12, … up to d, and d."""
    found = {d}
    step = 1
    while step <= d:
        found |= {step, min(step * 3 // 2, d)}
        step *= 2
    return sorted(found - {0})
