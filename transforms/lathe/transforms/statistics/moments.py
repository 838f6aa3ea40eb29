"""`Moments`: count, mean, scatter matrix and higher moments of rows, from which every spectral fit starts.

Fitting data are vectors, given moments, or vectors whose owner computes the moments.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save

from lathe.transforms.errors import ArtifactError, InputError
from lathe.transforms.statistics.norms import unit_rows
from lathe.transforms.vectors import (
    BLOCK_ROWS,
    FloatArray,
    Vectors,
    as_numpy,
    require_finite,
    require_matrix,
    row_blocks,
)

ROUNDING = 1e-28
"""Variance of rounding error relative to the mean squared norm: float64 centers rows to 1e-16 of their norm."""

Precision = Literal["float64", "float32"]
"""Dtype in which the products of a block are computed; sums over blocks are always float64."""


class Moments:
    """Count, mean and second to fourth central moments of rows, computed block by block and mergeable.

    Updates and merges follow Chan, Golub and LeVeque (1979): every block is centered on its own
    mean before its product is taken, so data whose mean is far larger than its standard deviation stay
    accurate, and the order and grouping of blocks does not matter beyond rounding.
    Memory is O(d²) and one block.

    Precision `float64` is exact to rounding: any order and grouping agree to 1e-10, relative.
    `float32` takes the product of a block in float32, in about half the time, and still adds the
    blocks up in float64: an entry of the covariance is off by less than 1e-5·√(C_ii C_jj)
    (measured on embeddings: 1e-6), the mean is exact.

    Attributes:
        count: number of rows.
        mean: `(d,)`, float64: μ.
        scatter: `(d, d)`, float64: Σ yyᵀ with y = x − μ.
        third: `(d,)`, float64: Σ ‖y‖² y, needed to merge `fourth`.
        fourth: Σ ‖y‖⁴, from which Ledoit–Wolf shrinkage estimates the error of the covariance.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import Moments
        >>> rows = np.random.default_rng(0).normal(size=(300, 4))
        >>> moments = Moments.from_vectors(rows[:100]).merge(Moments.from_vectors(rows[100:]))
        >>> moments.count, bool(np.allclose(moments.mean, rows.mean(axis=0)))
        (300, True)
        >>> bool(np.allclose(moments.covariance(), np.cov(rows.T)))
        True
    """

    def __init__(self, precision: Precision = "float64") -> None:
        if precision not in ("float64", "float32"):
            raise InputError(f"moments are taken in float64 or float32, not {precision!r}")

        self.precision = precision
        self.count = 0
        self.mean: NDArray[np.float64] = np.zeros(0)
        self.scatter: NDArray[np.float64] = np.zeros((0, 0))
        self.third: NDArray[np.float64] = np.zeros(0)
        self.fourth = 0.0

    @classmethod
    def from_vectors(
        cls,
        vectors: Vectors,
        block_rows: int = BLOCK_ROWS,
        precision: Precision = "float64",
    ) -> Self:
        """Compute the moments of all rows of `vectors` `(n, d)` in one pass, block by block. NaN or inf raises.

        Args:
            vectors: array, tensor, memmap or view of any float dtype.
            block_rows: number of rows per block.
            precision: dtype of the products of a block; see the class.

        Raises:
            InputError: for NaN, inf, or a shape that is not `(n, d)`.
        """
        moments = cls(precision)
        if not isinstance(block_rows, int) or block_rows < 1:
            raise InputError(f"block_rows must be a whole number from 1, got {block_rows!r}")
        for block in row_blocks(vectors, block_rows):
            moments.update(block)
        return moments

    @property
    def dimensions(self) -> int:
        """Number of dimensions d of the rows, 0 before the first row."""
        return len(self.mean)

    @property
    def source_dimensions(self) -> int:
        """Number of input dimensions of a transform fitted on these moments.

        It is d here, and less for pairs.
        """
        return self.dimensions

    def update(self, batch: Vectors) -> Self:
        """Add the rows of a batch `(n, d)` to these moments in place, and return `self`. NaN or other dimensions raise.

        Raises:
            InputError: for NaN, inf, or other dimensions than before.
        """
        require_matrix(batch)
        block: FloatArray = as_numpy(batch)
        if block.shape[0] == 0:
            return self
        return self.merge(block_moments(block, self.precision, first_row=self.count))

    def merge(self, other: "Moments") -> Self:
        """Add moments of other rows to these moments in place, and return `self`. Other dimensions raise.

        Raises:
            InputError: if the dimensions differ.
        """
        if other.count == 0:
            return self
        if self.count == 0:
            # Copies, because later merges add to `scatter` in place, which must not change `other`.
            self.count, self.mean, self.scatter = other.count, other.mean.copy(), other.scatter.copy()
            self.third, self.fourth = other.third.copy(), other.fourth
            return self
        if self.dimensions != other.dimensions:
            raise InputError(f"cannot merge moments of {other.dimensions} dimensions into moments of {self.dimensions}")

        total = self.count + other.count
        # Chan et al.: with δ = μ₂ − μ₁ the common mean is μ₁ + δn₂/n, and the scatter gains δδᵀ·n₁n₂/n. The higher
        # moments move to that mean first, because they need both scatters as they were.
        delta = other.mean - self.mean
        (third, fourth), (their_third, their_fourth) = (
            self._shift_higher_moments(delta * (other.count / total)),
            other._shift_higher_moments(delta * (-self.count / total)),
        )
        self.third, self.fourth = third + their_third, fourth + their_fourth
        self.mean = self.mean + delta * (other.count / total)
        self.scatter += other.scatter
        self.scatter += np.outer(delta * (self.count * other.count / total), delta)
        self.count = total

        return self

    def _shift_higher_moments(self, shift: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """Return the sums Σ‖z‖²z `(d,)` and Σ‖z‖⁴ with z = x − (mean + shift).

        `third` and `fourth` have z = x − mean. The object is not changed.
        """
        # Σ ‖y − s‖² (y − s) and Σ ‖y − s‖⁴ multiplied out; terms in Σ y are missing, because y is centred.
        spread, along, square = np.trace(self.scatter), self.scatter @ shift, float(shift @ shift)
        third = self.third - shift * spread - 2 * along - self.count * square * shift
        fourth = self.fourth - 4 * shift @ self.third + 4 * shift @ along + 2 * square * spread + self.count * square**2
        return third, float(fourth)

    def covariance(self, ddof: int = 1) -> NDArray[np.float64]:
        """Return the covariance matrix `(d, d)` of the rows: the scatter divided by `count − ddof`.

        Raises:
            InputError: if there are not more than `ddof` rows.
        """
        if self.count <= ddof:
            raise InputError(f"a covariance with ddof={ddof} needs more than {ddof} rows, got {self.count}")
        return self.scatter / (self.count - ddof)

    def squared_norm_variance(self) -> float:
        """Return the variance of the squared norms ‖x‖² of the rows.

        It is 0, up to rounding, if all rows have the same norm, and NaN if the third or fourth moments are NaN, as
        after `propagate_moments`.
        """
        # With y = x − μ, ‖x‖² = ‖y‖² + 2⟨μ, y⟩ + ‖μ‖², whose variance takes the moments of y up to the fourth.
        spread = float(self.scatter.trace()) / self.count
        mixed = 4 * float(self.mean @ self.third) + 4 * float(self.mean @ self.scatter @ self.mean)
        return (self.fourth + mixed) / self.count - spread**2

    def second_moment(self) -> NDArray[np.float64]:
        """Return the uncentred second moment matrix `(d, d)`: the mean of xxᵀ over the rows x."""
        # E[xxᵀ] = C + μμᵀ only adds; storing E[xxᵀ] and subtracting μμᵀ would cancel the digits of a small C.
        return self.covariance(ddof=0) + np.outer(self.mean, self.mean)

    def rounding_variance(self) -> float:
        """Return the total variance up to which rows count as constant: 1e-28 times the mean squared norm.

        Float64 rounding leaves up to that much variance in equal rows.
        """
        return ROUNDING * float(np.trace(self.second_moment()))

    def mean_norm(self) -> float:
        """Return the L2 norm of the mean.

        For unit rows it is from 0 (no common direction) to 1 (all rows equal).
        """
        return float(np.linalg.norm(self.mean))

    def noise_floor(self) -> float:
        """Return the norm that the mean of n rows is expected to have by chance, if their true mean is zero.

        It is √(tr Σ / n), with Σ their covariance.
        """
        return float(np.sqrt(np.trace(self.scatter)) / max(self.count, 1))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return count, mean, scatter, third and fourth moments as arrays by name, for saving.

        `precision` is left out.
        """
        return {
            "count": np.array([self.count], np.int64),
            "mean": self.mean,
            "scatter": self.scatter,
            "third": self.third,
            "fourth": np.array([self.fourth]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Rebuild moments from the arrays that `arrays` returned.

        The arrays are not copied.
        """
        moments = cls()
        moments.count, moments.fourth = int(arrays["count"][0]), float(arrays["fourth"][0])
        moments.mean, moments.scatter, moments.third = arrays["mean"], arrays["scatter"], arrays["third"]
        return moments

    def to_bytes(self) -> bytes:
        """Return the moments as safetensors bytes.

        `from_bytes` restores them bit by bit, except `precision`.
        """
        return save({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in self.arrays().items()})

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        """Rebuild moments from the bytes that `to_bytes` returned, and return them.

        Raises:
            ArtifactError: if the bytes are not serialized moments.
        """
        try:
            return cls.from_arrays({name: tensor.numpy() for name, tensor in load(payload).items()})
        except Exception as error:  # safetensors, NumPy and torch raise their own
            raise ArtifactError(f"these are not saved moments: {error}") from error


def block_moments(block: FloatArray, precision: Precision, first_row: int = 0) -> Moments:
    """Compute the moments of one block of rows `(n, d)` that is in memory. A row with NaN or inf raises.

    Raises:
        InputError: for NaN or inf; names the row, counted from `first_row`.
    """
    part = Moments(precision)
    part.count = block.shape[0]
    with np.errstate(invalid="ignore", over="ignore"):
        part.mean = block.mean(axis=0, dtype=np.float64)

    if not np.isfinite(part.mean).all():  # the mean is finite only if every row is
        require_finite(block, first_row)

    if precision == "float64":
        centred = np.subtract(block, part.mean, dtype=np.float64)
    else:
        # Float64 rows are centred before they are rounded, so that a large mean cancels in full precision; float16
        # has too few digits for the mean itself.
        rows = block.astype(np.float32, copy=False) if block.dtype == np.float16 else block
        centred = (rows - part.mean.astype(rows.dtype)).astype(np.float32, copy=False)

    part.scatter = np.asarray(centred.T @ centred, dtype=np.float64)
    squares = np.vecdot(centred, centred)
    part.third = np.asarray(squares @ centred, dtype=np.float64)
    part.fourth = float(squares @ squares)

    if precision == "float32":  # correct for the rounded mean
        residual_mean = centred.mean(axis=0, dtype=np.float64)
        part.scatter -= part.count * np.outer(residual_mean, residual_mean)

    return part


class RowTransform(Protocol):
    """Protocol of a fitted chain of transforms, as far as lazy views of vectors need it."""

    def dimensions_after(self, dimensions: int) -> int:
        """Return the number of output dimensions for inputs of `dimensions` dimensions."""

    def transform(self, rows: Any) -> Any:
        """Map rows `(n, d)` to outputs `(n, k)`."""


@runtime_checkable
class SharedVectors(Vectors, Protocol):
    """Protocol of vectors whose owner computes their moments itself, for instance in other processes."""

    def view_through(self, chain: RowTransform) -> "SharedVectors":
        """Return a lazy view of these vectors whose rows are transformed by a fitted chain when they are read."""

    def block_moments(self, unit: bool) -> Iterator[Moments]:
        """Yield the moments of each block of `BLOCK_ROWS` rows, in order.

        With `unit`, rows are L2-normalized first.
        """


def moments_of(data: Moments | Vectors) -> Moments:
    """Return the moments of vectors `(n, d)`, or the data themselves if they are `Moments` already."""
    # `from_vectors` would also work, but would read every row here that the owner can summarize itself.
    if isinstance(data, SharedVectors):
        return _merge_moments(data.block_moments(unit=False))
    return data if isinstance(data, Moments) else Moments.from_vectors(data)


def unit_moments(vectors: Vectors) -> Moments:
    """Compute the moments of the rows of `vectors` `(n, d)` after L2 normalization, block by block, and return them."""
    if isinstance(vectors, SharedVectors):
        return _merge_moments(vectors.block_moments(unit=True))
    moments = Moments()
    for block in row_blocks(vectors):
        moments.update(normalize_in_float64(block))
    return moments


def normalize_in_float64(block: FloatArray) -> NDArray[np.float64]:
    """Return rows `(n, d)` converted to float64 and L2-normalized, as a new array.

    Near-zero rows become zeros.
    """
    # Float64 before the division: unit rows in float32 have norms that are off by float32's rounding.
    unit: NDArray[np.float64] = unit_rows(torch.from_numpy(block.astype(np.float64))).numpy()
    return unit


def _merge_moments(parts: Iterable[Moments]) -> Moments:
    """Merge the moments of disjoint sets of rows into a new object.

    If the parts are blocks in order, the result equals the moments of a single pass to the last bit.
    """
    moments = Moments()
    # `Moments.update` merges its blocks in the same order, hence the same bits; a tree of merges rounds otherwise.
    for part in parts:
        moments.merge(part)
    return moments


def dimensions_of(data: Moments | Vectors) -> int:
    """Return the number of dimensions d of vectors `(n, d)` or of the rows that moments describe."""
    return data.dimensions if isinstance(data, Moments) else data.shape[1]
