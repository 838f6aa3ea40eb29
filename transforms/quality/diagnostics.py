"""What is odd about a set of vectors: common direction, lengths, spectrum, rows that say nothing."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transforms.errors import InputError
from transforms.quality.metrics import isoscore
from transforms.statistics.moments import Moments
from transforms.statistics.spectrum import Spectrum, participation_ratio
from transforms.vectors import FloatArray, Vectors, finite_blocks

Diagnostics = dict[str, Any]

UNIT = 1e-3
"""A row this close to length 1 counts as unit; the norm audit of the mean-bias paper (its Appendix C)."""

DIRECTION_MARGIN = 2.0
"""Times its noise floor that ‖μ‖ must be long to count as a direction."""

SHARES = (0.5, 0.9, 0.95, 0.99)


def diagnose(vectors: Vectors) -> Diagnostics:
    """Look at the rows of an array, memmap or view `(n, d)`, in one pass.

    Lengths are those of the rows as they are; all else is of the rows brought to unit length.

    Returns:
        A JSON object:

        - `n`, `dimensions`; `zero_rows`; `duplicate_rows`: rows that repeat an earlier one.
        - `norms`: `{mean, std, min, max, unit}`, the last the share of rows of length 1 ± 0.001.
        - `mean_norm`: ‖μ‖; `noise_floor`: √(tr Σ/n), what chance alone would give.
        - `participation_ratio`: tr(C)²/‖C‖²_F, the directions the variance is spread over;
          `isoscore`: (that − 1)/(d − 1); `rank`.
        - `spectrum`: `[[i, share]]`, the share of the variance that the i-th direction has;
          `dimensions_for`: how many directions hold a share of the variance.
        - `alignment`: |cos| of μ̂ with the top direction, `centered` and `uncentered` (Appendix D
          of the mean-bias paper); null where there is no mean or no variance.

    Raises:
        InputError: for NaN, inf, no rows or a shape that is not `(n, d)`.
    """
    moments, norms, hashes = Moments(), [], []
    for block in finite_blocks(vectors):
        exact = block.astype(np.float64)
        lengths = np.linalg.norm(exact, axis=1)
        moments.update(exact / np.where(lengths == 0, 1, lengths)[:, None])
        norms.append(lengths)
        hashes.append(row_hashes(block))
    if moments.count == 0:
        raise InputError("there are no rows to look at")
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
            "unit": float((np.abs(lengths - 1) <= UNIT).mean()),
        },
        **shape_of(moments),
    }


def shape_of(moments: Moments) -> Diagnostics:
    """What moments alone tell; see `diagnose`."""
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
        "spectrum": [[i, float(shares[i - 1])] for i in geometric_ranks(d)],
        "dimensions_for": {
            str(share): int(np.searchsorted(held, share * (1 - 1e-12)) + 1) if total > 0 else 0 for share in SHARES
        },
        "alignment": {
            "centered": centered_alignment(spectrum, moments.mean),
            "uncentered": uncentered_alignment(spectrum, moments.mean),
        },
    }


def centered_alignment(spectrum: Spectrum, mean: NDArray[np.float64]) -> float | None:
    """|cos(μ̂, u₁)| with the top eigenvector u₁ of the centred covariance."""
    norm = np.linalg.norm(mean)
    if norm == 0 or spectrum.rank == 0:
        return None
    return min(1.0, float(abs(spectrum.directions[0] @ mean) / norm))


def uncentered_alignment(spectrum: Spectrum, mean: NDArray[np.float64]) -> float | None:
    """|cos(μ̂, v₁)| with the top eigenvector v₁ of the uncentred second moment C + μμᵀ.

    In closed form from the spectrum of the centred C (*Correcting Mean Bias in Text Embeddings*,
    Appendix D): with αᵢ = uᵢ·μ̂, the largest eigenvalue λ* is the largest root of
    1 = ‖μ‖² Σ αᵢ²/(λ* − λᵢ), and v₁ ∝ Σ αᵢ/(λ* − λᵢ) uᵢ. It is looked for as λ₁ + t, t in (0, ‖μ‖²].
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


def row_hashes(block: FloatArray) -> NDArray[np.uint64]:
    """A 64-bit hash of each row's bytes: equal rows have equal hashes, others hardly ever."""
    block = block + block.dtype.type(0)  # −0 becomes 0
    words = np.ascontiguousarray(block).view(np.dtype(f"u{block.dtype.itemsize}")).astype(np.uint64)
    words ^= words >> np.uint64(29)  # 1.0 and 2.0 differ in their high bits only; multiplying moves none down
    factors = np.random.default_rng(0).integers(0, 2**64 - 1, words.shape[1], dtype=np.uint64) | np.uint64(1)
    mixed = (words + factors) * (factors >> np.uint64(7) | np.uint64(1))
    mixed ^= mixed >> np.uint64(31)
    return np.asarray((mixed * factors).sum(axis=1, dtype=np.uint64))


def geometric_ranks(d: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, … up to d, and d."""
    found = {d}
    step = 1
    while step <= d:
        found |= {step, min(step * 3 // 2, d)}
        step *= 2
    return sorted(found - {0})
