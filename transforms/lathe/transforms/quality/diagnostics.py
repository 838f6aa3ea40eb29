"""Statistics of a set of vectors: mean direction, norms, spectrum, isotropy, zero and duplicate rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.errors import InputError
from lathe.transforms.quality.metrics import isoscore
from lathe.transforms.statistics import Moments, Spectrum, participation_ratio
from lathe.transforms.vectors import FloatArray, Vectors, finite_blocks

Diagnostics = dict[str, Any]
"""JSON object that `diagnose` returns."""

UNIT_TOLERANCE = 1e-3
"""Maximum distance from 1 of the norm of a unit row, as in the norm audit of the mean-bias paper (Appendix C)."""

SHARES = (0.5, 0.9, 0.95, 0.99)
"""Shares of the total variance reported in `dimensions_for`."""


def diagnose(vectors: Vectors) -> Diagnostics:
    """Describe rows `(n, d)` by norms, duplicates, mean, spectrum and isotropy, as a JSON object. Raise for NaN.

    The rows are read once, in blocks. `norms`, `zero_rows` and `duplicate_rows` describe the rows as they are; all
    other statistics describe the rows after L2 normalization.

    Returns:
        A JSON object:

        - `n`, `dimensions`; `zero_rows`; `duplicate_rows`: number of rows that equal an earlier row.
        - `norms`: `{mean, std, min, max, unit}`; `unit` is the share of rows of norm 1 ± 0.001.
        - `mean_norm`: ‖μ‖; `noise_floor`: √(tr Σ/n), the expected ‖μ‖ if the true mean were zero.
        - `participation_ratio`: tr(C)²/‖C‖²_F, the number of directions the variance is spread over;
          `isoscore`: (participation ratio − 1)/(d − 1); `rank`: rank of the covariance C.
        - `spectrum`: `[[i, share]]`, the share of the variance along the i-th principal direction;
          `dimensions_for`: number of principal directions that hold each of `SHARES` of the variance.
        - `alignment`: |cos| of μ with the top principal direction, `centered` and `uncentered` (Appendix D
          of the mean-bias paper); null without mean or variance.

    Raises:
        InputError: if rows hold NaN or inf, there are no rows, or the shape is not `(n, d)`.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import diagnose
        >>> described = diagnose(np.array([[3, 4], [3, 4], [0, 0]], np.float32))
        >>> described["n"], described["zero_rows"], described["duplicate_rows"], described["rank"]
        (3, 1, 1, 1)
    """
    moments, norms, hashes = Moments(), [], []
    for block in finite_blocks(vectors):
        exact = block.astype(np.float64)
        lengths = np.linalg.norm(exact, axis=1)
        # Rows of zeros stay zeros: they have no direction, but they count as rows.
        moments.update(exact / np.where(lengths == 0, 1, lengths)[:, None])
        norms.append(lengths)
        # Eight bytes of each row stay in memory to find duplicates, so the rows can be streamed.
        hashes.append(_hash_rows(block))

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
        **_describe_moments(moments),
    }


def _describe_moments(moments: Moments) -> Diagnostics:
    """Return the entries of `diagnose` that follow from the moments alone, by name.

    They are mean norm, noise floor, participation ratio, IsoScore, rank, spectrum and alignment.
    """
    covariance = moments.covariance(ddof=0)
    spectrum = Spectrum.from_matrix(covariance)
    total = spectrum.values.sum()
    shares = spectrum.values / total if total > 0 else spectrum.values
    # held[i] is the share of the variance in the first i + 1 directions.
    held = shares.cumsum()
    d = moments.dimensions

    return {
        "mean_norm": moments.mean_norm(),
        "noise_floor": moments.noise_floor(),
        "participation_ratio": participation_ratio(covariance),
        "isoscore": isoscore(moments),
        "rank": spectrum.rank,
        "spectrum": [[i, float(shares[i - 1])] for i in _list_geometric_ranks(d)],
        # Rounding in the cumulative sum must not ask for one direction more than the share needs.
        "dimensions_for": {
            str(share): int(np.searchsorted(held, share * (1 - 1e-12)) + 1) if total > 0 else 0 for share in SHARES
        },
        "alignment": {
            "centered": centered_alignment(spectrum, moments.mean),
            "uncentered": uncentered_alignment(spectrum, moments.mean),
        },
    }


def centered_alignment(spectrum: Spectrum, mean: NDArray[np.float64]) -> float | None:
    """Return the absolute cosine of the mean with the top eigenvector of the centred covariance.

    None if mean or variance is zero.
    """
    norm = np.linalg.norm(mean)
    if norm == 0 or spectrum.rank == 0:
        return None
    return min(1.0, float(abs(spectrum.directions[0] @ mean) / norm))


def uncentered_alignment(spectrum: Spectrum, mean: NDArray[np.float64]) -> float | None:
    """Return the absolute cosine of the mean μ with the top eigenvector of C + μμᵀ, None if the mean is zero.

    C + μμᵀ is the uncentred second moment. Computed from the spectrum of the centred C (*Correcting Mean Bias in Text
    Embeddings*, Appendix D): with μ̂ = μ/‖μ‖ and αᵢ = uᵢ·μ̂, the largest eigenvalue λ* is the largest root of 1 = ‖μ‖²
    Σ αᵢ²/(λ* − λᵢ), and v₁ ∝ Σ αᵢ/(λ* − λᵢ) uᵢ. Bisection finds λ* as λ₁ + t, t in (0, ‖μ‖²].
    """
    norm = float(np.linalg.norm(mean))
    if norm == 0:
        return None

    alpha = spectrum.directions @ (mean / norm)
    gaps = spectrum.values[0] - spectrum.values

    def excess(t: float) -> float:
        """Return ‖μ‖² Σ αᵢ²/(λ₁ + t − λᵢ) − 1, which decreases in t and is 0 at λ₁ + t = λ*."""
        return norm**2 * float((alpha**2 / (t + gaps)).sum()) - 1

    low, high = norm**2 * 1e-18, norm**2
    if excess(low) <= 0:  # μ̂ is orthogonal to u₁, and too short to overtake it
        return float(abs(alpha[0]))

    for _ in range(200):
        # t spans 18 orders of magnitude, and the geometric middle finds small roots to the same relative precision.
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)

    top = alpha / (high + gaps)
    return min(1.0, float(abs(alpha @ top) / np.linalg.norm(top)))


def _hash_rows(block: FloatArray) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row, `(n,)` uint64.

    Equal rows have equal hashes (−0 equals 0), and other rows very rarely do.
    """
    block = block + block.dtype.type(0)  # −0 becomes 0
    words = np.ascontiguousarray(block).view(np.dtype(f"u{block.dtype.itemsize}")).astype(np.uint64)
    words ^= words >> np.uint64(29)  # 1.0 and 2.0 differ in high bits only, and a product moves no bit down
    # The seed is fixed because hashes of different blocks are compared. An odd factor is invertible modulo 2⁶⁴,
    # so a product with one loses no bit of a word.
    factors = np.random.default_rng(0).integers(0, 2**64 - 1, words.shape[1], dtype=np.uint64) | np.uint64(1)
    mixed = (words + factors) * (factors >> np.uint64(7) | np.uint64(1))
    mixed ^= mixed >> np.uint64(31)

    return np.asarray((mixed * factors).sum(axis=1, dtype=np.uint64))


def _list_geometric_ranks(d: int) -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12, … (2ⁱ and 3·2ⁱ) up to d, and d itself, as an ascending list."""
    ranks = {d}
    step = 1
    while step <= d:
        ranks |= {step, min(step * 3 // 2, d)}
        step *= 2
    return sorted(ranks - {0})
