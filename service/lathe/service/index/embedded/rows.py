"""Rows of a generation: memory-mapped files that only grow, with one row for each version of an item.

labels.i64     (n,)    which label of the record a row is, ascending
originals.f16  (n, d)  for rescoring; of length 1 where the metric is cosine; none where no originals are stored
reduced.f32    (n, k)  compact vectors: what is searched, exactly or by the graph
codes.u8       (n, b)  compact vectors where the chain ends in codes

Space is allocated before it is written, so that a full disk is an error and not a SIGBUS.
"""

import errno
import hashlib
import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.service.index.embedded.vector_formats import VectorFormat
from lathe.transforms.files import NO_LINK, continue_file

MIN_MAPPED_ROWS = 1024
"""Minimum number of rows that a file has space for."""
HASHED_BYTES = 2**24
"""Default number of bytes hashed or written at once."""
SLOW_ROW_SECONDS = 3e-6
"""Time to read a row above which rows come from the disk: it takes 8 µs and more, the page cache under 1 µs."""


class RowFile:
    """Memory-mapped file of an array `(capacity, width)` of one dtype, which can be enlarged.

    The map holds a descriptor of the file, and no other stays open: servers have many indexes, and few descriptors.

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
        self.from_disk = True  # whether the last rows that were read came from the disk
        self.row_bytes = self.dtype.itemsize * width
        self.digest = hashlib.sha256()
        self.digested = 0
        with continue_file(path) as file:
            status = os.fstat(file.fileno())
            self.identity = status.st_dev, status.st_ino
            self._map(file.fileno(), max(MIN_MAPPED_ROWS, status.st_size // self.row_bytes))

    @contextmanager
    def _open(self) -> Iterator[int]:
        """Open the file, and yield its descriptor to the block.

        Raises:
            OSError: if the file was deleted or replaced since it was mapped.
        """
        descriptor = os.open(self.path, os.O_RDWR | NO_LINK)
        try:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != self.identity:
                raise OSError(errno.ESTALE, "the file was replaced while it was open", str(self.path))
            yield descriptor
        finally:
            os.close(descriptor)

    def reserve(self, rows: int) -> None:
        """Allocate disk space for `rows` rows in total, and map the file again. `array` is another array then.

        Raises:
            OSError: if the disk is full.
        """
        with self._open() as descriptor:
            self._map(descriptor, rows)

    def _map(self, descriptor: int, rows: int) -> None:
        """Allocate disk space for `rows` rows in total, and map them as `array`."""
        _allocate(descriptor, rows * self.row_bytes)
        self.map = mmap.mmap(descriptor, rows * self.row_bytes)
        if self.scattered and hasattr(mmap, "MADV_RANDOM"):
            # Else Linux reads up to its read-ahead, 128 kB to some MB, for every row that is not in the page cache.
            self.map.madvise(mmap.MADV_RANDOM)
        self.array: NDArray[Any] = np.ndarray((rows, self.width), self.dtype, self.map)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies `(k, width)` of the rows with these numbers.

        Reading is fastest in ascending order. While rows come from the disk, the system is first asked for all of them
        at once, not for one after the other.
        """
        if self.from_disk and hasattr(mmap, "MADV_WILLNEED"):
            for position in (rows * self.row_bytes).tolist():
                beyond = position % mmap.PAGESIZE  # madvise takes whole pages
                self.map.madvise(mmap.MADV_WILLNEED, position - beyond, beyond + self.row_bytes)

        begun = time.perf_counter()
        copies: NDArray[Any] = self.array[rows]
        self.from_disk = time.perf_counter() - begun > SLOW_ROW_SECONDS * len(rows)
        return copies

    def compute_digest(self, rows: int, block_bytes: int = HASHED_BYTES) -> str:
        """Return the SHA-256 of the first `rows` rows in hexadecimal. Only rows that no earlier call hashed are read.

        If an earlier call hashed more than `rows` rows, all are read again. `block_bytes` are read at once.
        """
        if rows < self.digested:
            self.forget_digest()

        end = rows * self.row_bytes
        position = self.digested * self.row_bytes
        with self._open() as descriptor:
            while position < end:
                # Read and not mapped: pages that are only hashed do not become resident memory of this process.
                block = os.pread(descriptor, min(block_bytes, end - position), position)
                if not block:
                    raise OSError(errno.EIO, "the file has become shorter", str(self.path))
                self.digest.update(block)
                position += len(block)

        self.digested = rows
        return self.digest.hexdigest()

    def forget_digest(self) -> None:
        """Reset the running digest, so that the next call hashes all rows again."""
        self.digest, self.digested = hashlib.sha256(), 0

    def sync(self) -> None:
        """Flush all rows and wait until they are on disk."""
        self.map.flush()
        with self._open() as descriptor:
            os.fsync(descriptor)


def _allocate(descriptor: int, size: int) -> None:
    """Allocate disk blocks for a file up to `size` bytes, without holes, and raise `OSError` if the disk is full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return

    allocated = os.fstat(descriptor).st_size
    while allocated < size:  # macOS: writing to a hole through the map on a full disk would be a SIGBUS
        allocated += os.pwrite(descriptor, bytes(min(size - allocated, HASHED_BYTES)), allocated)


GROWTH = 1.5
"""Factor by which a full file grows, so that appending is seldom slow."""
Labels = NDArray[np.int64]
"""Labels of the record: each stands for one version of one item."""


@dataclass(frozen=True)
class RowsView:
    """Immutable view of the rows at one moment, as arrays of equal length.

    Attributes:
        labels: labels `(n,)`, ascending.
        originals: original vectors `(n, d)`, float16; `(n, 0)` where none are stored.
        compact: compact vectors `(n, width)`: floats or codes, see `VectorFormat`.
        alive: `(n,)`, false where the item was deleted or replaced.
    """

    labels: Labels
    originals: NDArray[np.float16]
    compact: NDArray[Any]
    alive: NDArray[np.bool_]

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.labels)

    def find_rows(self, labels: Labels) -> NDArray[np.int64]:
        """Return the row numbers of labels, the record's integer ids. Labels that have no row are left out."""
        if not self.count or not len(labels):
            return np.empty(0, np.int64)
        positions = np.searchsorted(self.labels, labels)
        inside = positions < self.count
        positions, labels = positions[inside], labels[inside]
        rows: Labels = positions[self.labels[positions] == labels]
        return rows


class GenerationRows:
    """All rows of a generation: labels, float16 original vectors, and compact vectors, each in a memory-mapped file.

    The files are created if missing. Rows that they hold already do not count until `restore` is called.

    Args:
        width: number of dimensions of the original vectors; None if they are not stored.

    Attributes:
        count: number of rows.
        dead: number of rows whose item was deleted or replaced.
    """

    def __init__(self, folder: Path, width: int | None, compact: VectorFormat) -> None:
        self.labels = RowFile(folder / "labels.i64", "int64", 1)
        self.originals: RowFile | None = None
        if width is not None:
            self.originals = RowFile(folder / "originals.f16", "float16", width, scattered=True)
        self.compact = RowFile(folder / compact.file_name, compact.dtype, compact.width)
        self.alive = np.ones(len(self.labels.array), np.bool_)
        self.count = 0
        self.dead = 0
        self.changing = threading.Lock()

    @property
    def files(self) -> Sequence[RowFile]:
        """Files of labels, originals if they are stored, and compact vectors, in that order."""
        return (self.labels, *([self.originals] if self.originals else []), self.compact)

    @property
    def bytes(self) -> int:
        """Size of the rows in bytes, without reserved space."""
        return self.count * sum(file.row_bytes for file in self.files)

    def take_view(self) -> RowsView:
        """Return an immutable view of the rows as they are now."""
        with self.changing:
            n = self.count
            # Rows below `count` never change, and `alive` is replaced and not written to, so a view needs no copies.
            originals = np.empty((n, 0), np.float16) if self.originals is None else self.originals.array[:n]
            return RowsView(self.labels.array[:n, 0], originals, self.compact.array[:n], self.alive[:n])

    def restore(self, count: int) -> None:
        """Set the number of rows to `count`, for rows that the files hold already. None of them is dead."""
        self.count = count

    def reserve(self, more: int) -> None:
        """Allocate disk space for `more` additional rows, so that appending them needs none.

        Raises:
            OSError: if the disk is full.
        """
        needed = self.count + more
        capacity = min(len(file.array) for file in self.files)
        if needed <= min(capacity, len(self.alive)):
            return

        grown = max(needed, int(capacity * GROWTH))
        for file in self.files:
            file.reserve(grown)
        alive = np.ones(grown, np.bool_)
        with self.changing:
            alive[: self.count] = self.alive[: self.count]
            self.alive = alive

    def append(
        self,
        labels: Labels,
        originals: NDArray[np.floating[Any]] | None,
        compact: NDArray[Any],
        replaced: Labels | None = None,
    ) -> None:
        """Append rows, and mark the rows with the labels `replaced` as dead. Readers see both changes at once.

        Args:
            labels: labels `(n,)`, all above the existing ones.
            originals: original vectors `(n, d)`; None if they are not stored.
            compact: compact vectors `(n, width)`.
            replaced: labels of the replaced versions.

        Raises:
            OSError: if the disk is full; nothing is appended.
        """
        self.reserve(len(labels))
        rows = slice(self.count, self.count + len(labels))
        # Written without the lock: readers do not look behind `count`, which is raised last.
        self.labels.array[rows, 0] = labels
        if self.originals is not None:
            self.originals.array[rows] = originals
        self.compact.array[rows] = compact

        alive, died = self._compute_alive(replaced)
        with self.changing:
            self.alive, self.dead, self.count = alive, self.dead + died, rows.stop

    def mark_dead(self, labels: Labels) -> None:
        """Mark the rows of these labels as dead, so that no search returns them. Unknown labels are ignored."""
        alive, died = self._compute_alive(labels)
        with self.changing:
            self.alive, self.dead = alive, self.dead + died

    def _compute_alive(self, labels: Labels | None) -> tuple[NDArray[np.bool_], int]:
        """Return the mask `(capacity,)` of alive rows without the rows of these labels, and how many it takes out.

        If it takes none, `alive` itself is returned. Labels without a row are ignored.
        """
        rows = self.take_view().find_rows(labels) if labels is not None else np.empty(0, np.int64)
        rows = rows[self.alive[rows]]
        if not len(rows):
            return self.alive, 0

        alive = self.alive.copy()  # views hold the old mask
        alive[rows] = False
        return alive, len(rows)

    def compute_digests(self, rows: int, block_bytes: int = HASHED_BYTES) -> dict[str, str]:
        """Return `{file name: SHA-256 of its first rows}` in hexadecimal. Files are read `block_bytes` at a time."""
        return {file.path.name: file.compute_digest(rows, block_bytes) for file in self.files}

    def sync(self) -> None:
        """Flush all files and wait until they are on disk."""
        for file in self.files:
            file.sync()
