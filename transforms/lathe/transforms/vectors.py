"""Types, checks and conversions of vectors: NumPy arrays, torch tensors and memory-mapped files."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lathe.transforms.errors import InputError

FloatArray = NDArray[np.floating[Any]]
"""A NumPy array of any float dtype, with shape `(n, d)` unless stated otherwise."""

ALIGNMENT = 64
"""Alignment of torch's allocations, in bytes."""

BLOCK_ROWS = 4096
"""Number of rows per block when streaming: 6 MB in float32 at d=384, 64 MB at d=4096."""


class Vectors(Protocol):
    """A 2-D array-like `(n, d)` that can be sliced by rows: an array, a tensor, a memmap, or a lazy view."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape `(n, d)`."""

    def __getitem__(self, rows: Any, /) -> Any:
        """Return the rows at a slice or an index array, as floats `(m, d)`."""


def row_blocks(vectors: Vectors, rows: int = BLOCK_ROWS) -> Iterator[FloatArray]:
    """Yield the rows of vectors `(n, d)`, in order, as NumPy blocks of `rows` rows.

    The last block may be shorter.

    Raises:
        InputError: if the vectors are not a 2-D array of floats.
    """
    require_matrix(vectors)
    for start in range(0, vectors.shape[0], rows):
        yield as_numpy(vectors[start : start + rows])


def finite_blocks(vectors: Vectors) -> Iterator[FloatArray]:
    """Yield rows of vectors `(n, d)`, in order, as NumPy blocks of up to `BLOCK_ROWS` rows. NaN or inf raises.

    Each block is checked for NaN and inf before it is yielded.

    Raises:
        InputError: with the number of the first row that holds NaN or inf.
    """
    start = 0
    for block in row_blocks(vectors):
        require_finite(block, start)
        start += len(block)
        yield block


def as_vectors(vectors: Any) -> Vectors:
    """Return a list or tuple of rows as a NumPy array.

    Anything else, such as an array or a memmap, is returned unchanged.

    Raises:
        InputError: if the lists hold no numbers, or differ in length.
    """
    rows: Vectors = as_numpy(vectors) if isinstance(vectors, list | tuple) else vectors
    return rows


def require_matrix(vectors: Vectors) -> None:
    """Raise `InputError` unless `vectors` has a shape `(n, d)` with d ≥ 1.

    Raises:
        InputError: if it has another shape, or none.
    """
    declared = getattr(vectors, "shape", None)
    if declared is None:
        raise InputError(f"vectors must be an array or a tensor (n, d), got {type(vectors).__name__}")
    shape = tuple(declared)
    if len(shape) != 2 or shape[1] == 0:
        raise InputError(f"vectors must have the shape (n, d), got {shape}")


def require_finite(block: FloatArray, first_row: int = 0) -> None:
    """Raise `InputError` if a block of rows `(n, d)` holds NaN or inf, with the number of the first such row.

    A sum is finite only if all its terms are, so one cheap pass suffices in the ordinary case; rows are searched only
    if the sum is not finite (which an overflow can cause too).

    Raises:
        InputError: with the number of the first row that holds NaN or inf, where the block's first row has the number
            `first_row`.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        if np.isfinite(block.sum(dtype=np.float64)):
            return
    bad = ~np.isfinite(block).all(axis=1)
    if bad.any():
        raise InputError(f"row {first_row + int(bad.argmax())} holds NaN or inf")


def as_numpy(block: Any) -> FloatArray:
    """Return an array, a tensor or nested lists as a contiguous NumPy array of floats. Other values raise.

    The byte order is native. The numbers are copied only if needed. Float dtypes are kept, except that bfloat16,
    integers and bools become float32.

    Raises:
        InputError: if the values are not real numbers, or rows differ in length.
    """
    if isinstance(block, Tensor):
        block = block.detach().cpu()
        # NumPy has no bfloat16.
        block = (block.float() if block.dtype == torch.bfloat16 else block).numpy()

    try:
        array = np.asarray(block)
    except ValueError as error:
        raise InputError(f"vectors must all have the same number of dimensions: {error}") from error

    if array.dtype.kind in "iub":
        return array.astype(np.float32)
    if array.dtype.kind != "f":
        raise InputError(f"vectors must be numbers, got {array.dtype}")

    # torch takes no array of foreign byte order or negative strides.
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def as_tensor(rows: Any, like: Tensor) -> Tensor:
    """Return rows as a contiguous, aligned tensor with the dtype and device of `like`.

    The numbers are copied only if needed.
    """
    if isinstance(rows, Tensor):
        return standardize_layout(rows.to(dtype=like.dtype, device=like.device))
    array = as_numpy(rows)
    if not array.flags.writeable:  # torch warns about read-only memory, which it cannot use
        array = array.copy()
    return standardize_layout(torch.from_numpy(array).to(dtype=like.dtype, device=like.device))


def as_float64(tensor: Tensor) -> NDArray[np.float64]:
    """Return a tensor, on any device, as a float64 NumPy array."""
    array: NDArray[np.float64] = tensor.to("cpu", torch.float64).numpy()
    return array


def standardize_layout(tensor: Tensor) -> Tensor:
    """Return the tensor itself if it is contiguous and 64-byte aligned, else a copy that is.

    Equal numbers give bit-equal products only in equal layout. Matrix kernels are chosen by strides, and MKL sums small
    products in another order where an address is not a multiple of 16 bytes (1e-5 apart at 384 dimensions on an AMD
    EPYC). `Tensor.contiguous` looks at neither the address nor the strides of dimensions of size 1.
    """
    strides, stride = [], 1
    for size in reversed(tensor.shape):
        strides.append(stride)
        # torch counts an empty dimension as one of size 1.
        stride *= max(size, 1)

    if tensor.stride() == tuple(reversed(strides)) and tensor.data_ptr() % ALIGNMENT == 0:
        return tensor

    return tensor.clone(memory_format=torch.contiguous_format)


def find_valid_rows(vectors: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Return a mask `(n,)` that is True for vectors that are finite and not all zeros, which have a direction."""
    return np.asarray(np.isfinite(vectors).all(axis=1) & vectors.any(axis=1))
