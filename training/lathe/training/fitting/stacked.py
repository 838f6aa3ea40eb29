"""Vectors in several files, presented as one matrix."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.vectors import FloatArray, Vectors

MAX_OPEN_FILES = 256
"""Maximum number of files that are kept open. A source may have more files than a process may open."""


@dataclass(frozen=True)
class VectorFile:
    """A file of float32 rows without a header.

    Attributes:
        path: path of the file.
        rows: number of rows.
    """

    path: Path
    rows: int


class StackedVectors:
    """Vectors `(n, d)` in several files, presented as one matrix. Rows are read when the matrix is indexed.

    Indexing with slices, index arrays or masks returns float32 arrays.

    Args:
        parts: the files. No file is empty.
        dimensions: d, the number of dimensions.

    Attributes:
        ends: number of rows up to the end of each file `(parts,)`.
        shape: `(n, d)`.
        opened: `_open_part` with a cache of `MAX_OPEN_FILES` files.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, parts: Sequence[VectorFile], dimensions: int) -> None:
        self.parts = parts
        self.ends = np.cumsum([part.rows for part in parts])
        self.shape = (int(self.ends[-1]), dimensions)
        # The cache belongs to this object: a cache of the class would keep the files of all objects open.
        self.opened = lru_cache(MAX_OPEN_FILES)(self._open_part)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def _open_part(self, number: int) -> FloatArray:
        return np.memmap(self.parts[number].path, np.float32, "r", shape=(self.parts[number].rows, self.shape[1]))

    def __getitem__(self, rows: Any, /) -> FloatArray:
        """Read the rows of a slice, index array or mask from the files as an array `(m, d)`, or `(d,)` for an index.

        A contiguous slice within a single file is memory-mapped and not copied.

        Raises:
            IndexError: if an index is out of range.
        """
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            return self._read_range(start, stop) if step == 1 else self._read_indices(np.arange(start, stop, step))
        chosen = np.asarray(rows)
        if chosen.dtype == bool:
            chosen = np.flatnonzero(chosen)
        selected = self._read_indices(np.atleast_1d(chosen).astype(np.int64, copy=False))
        return selected if chosen.ndim else selected[0]

    def _read_range(self, start: int, stop: int) -> FloatArray:
        """Read the rows `start` to `stop` (exclusive) as an array `(m, d)`, memory-mapped within a single file."""
        blocks = []
        while start < stop:
            part = int(np.searchsorted(self.ends, start, side="right"))
            end = int(self.ends[part])
            first = end - self.parts[part].rows
            blocks.append(self.opened(part)[start - first : min(stop, end) - first])
            start = end

        if not blocks:
            return np.empty((0, self.shape[1]), np.float32)
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def _read_indices(self, rows: NDArray[np.int64]) -> FloatArray:
        """Copy the rows at the indices, negative ones from the end, to an array `(m, d)`. Out of range raises.

        Raises:
            IndexError: if an index is out of range.
        """
        rows = np.where(rows < 0, rows + len(self), rows)
        if len(rows) and not (0 <= rows.min() and rows.max() < len(self)):
            raise IndexError(f"a row index is out of range: there are {len(self):,} rows")
        selected = np.empty((len(rows), self.shape[1]), np.float32)
        # Every file is read once, whatever the order of the rows.
        parts = np.searchsorted(self.ends, rows, side="right")
        for part in np.unique(parts).tolist():
            of_part = np.flatnonzero(parts == part)
            first = int(self.ends[part]) - self.parts[part].rows
            selected[of_part] = self.opened(part)[rows[of_part] - first]
        return selected

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Read all rows into one array `(n, d)`."""
        return self._read_range(0, len(self)).astype(dtype or np.float32, copy=bool(copy))


class SelectedRows:
    """Lazy view of selected rows of vectors on disk. Rows are read when the view is indexed.

    Args:
        vectors: `(n, d)`.
        chosen: indices of the selected rows `(m,)`.

    Attributes:
        shape: `(m, d)`.
    """

    def __init__(self, vectors: Vectors, chosen: NDArray[np.int64]) -> None:
        self.vectors = vectors
        self.chosen = chosen
        self.shape = (len(chosen), vectors.shape[1])

    def __getitem__(self, rows: Any, /) -> FloatArray:
        """Read the selected rows at these positions as an array."""
        return np.asarray(self.vectors[self.chosen[rows]])
