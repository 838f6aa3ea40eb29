"""File of rows that only grows, memory-mapped as an array.

Space is allocated before it is written, so that a full disk is an error and not a SIGBUS.
"""

import errno
import hashlib
import mmap
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.files import continue_file

MIN_ROWS = 1024
"""Minimum number of rows that a file has space for."""
HASHED_BYTES = 2**24
"""Default number of bytes hashed or written at once."""
SLOW_ROW_SECONDS = 3e-6
"""Time to read a row above which rows come from the disk: it takes 8 µs and more, the page cache under 1 µs."""


class RowFile:
    """File of rows of one dtype and width, memory-mapped as an array.

    Args:
        scattered: whether rows are read here and there, so that the system must not read on after each of them.

    Attributes:
        array: mapped array `(capacity, width)`.
    """

    def __init__(self, path: Path, dtype: str, width: int, scattered: bool = False) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.width = width
        self.scattered = scattered
        self.from_disk = True  # whether the last rows that were read came from there
        self.row_bytes = self.dtype.itemsize * width
        self.file = continue_file(path)
        self.descriptor = self.file.fileno()
        self.digest = hashlib.sha256()
        self.digested = 0
        try:
            self.reserve(max(MIN_ROWS, os.fstat(self.descriptor).st_size // self.row_bytes))
        except BaseException:
            self.close()
            raise

    def reserve(self, rows: int) -> None:
        """Allocate disk space for a total number of rows, and map the file again.

        Raises:
            OSError: if the disk is full.
        """
        _allocate(self.descriptor, rows * self.row_bytes)
        self.map = mmap.mmap(self.descriptor, rows * self.row_bytes)
        if self.scattered and hasattr(mmap, "MADV_RANDOM"):
            # Else Linux reads up to its read-ahead, 128 kB to some MB, for every row that is not in the page cache.
            self.map.madvise(mmap.MADV_RANDOM)
        self.array: NDArray[Any] = np.ndarray((rows, self.width), self.dtype, self.map)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of the rows of some numbers, `(k, width)`; fastest in ascending order.

        While rows come from the disk, the system is first asked for all of them at once, not for one after the other.
        """
        if self.from_disk and hasattr(mmap, "MADV_WILLNEED"):
            for position in (rows * self.row_bytes).tolist():
                beyond = position % mmap.PAGESIZE
                self.map.madvise(mmap.MADV_WILLNEED, position - beyond, beyond + self.row_bytes)
        begun = time.perf_counter()
        found: NDArray[Any] = self.array[rows]
        self.from_disk = time.perf_counter() - begun > SLOW_ROW_SECONDS * len(rows)
        return found

    def compute_digest(self, rows: int, block_bytes: int = HASHED_BYTES) -> str:
        """Return the SHA-256 of the first rows, reading `block_bytes` at once.

        Rows hashed by earlier calls are not read again, unless one of these hashed more than `rows` rows.
        """
        if rows < self.digested:
            self.forget_digest()
        end = rows * self.row_bytes
        position = self.digested * self.row_bytes
        while position < end:
            # Read and not mapped: pages that are only hashed do not become resident memory of this process.
            block = os.pread(self.descriptor, min(block_bytes, end - position), position)
            if not block:
                raise OSError(errno.EIO, "the file has become shorter", str(self.path))
            self.digest.update(block)
            position += len(block)
        self.digested = rows
        return self.digest.hexdigest()

    def forget_digest(self) -> None:
        """Reset the running digest, because rows will be rewritten."""
        self.digest, self.digested = hashlib.sha256(), 0

    def sync(self) -> None:
        """Flush all rows and wait until they are on disk."""
        self.map.flush()
        os.fsync(self.descriptor)

    def close(self) -> None:
        """Close the file; arrays that map it stay usable."""
        self.file.close()


def _allocate(descriptor: int, size: int) -> None:
    """Allocate disk blocks for a file up to `size` bytes, without holes; raise `OSError` if the disk is full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    have = os.fstat(descriptor).st_size
    while have < size:  # macOS: writing to a hole through the map on a full disk would be a SIGBUS
        have += os.pwrite(descriptor, bytes(min(size - have, HASHED_BYTES)), have)
