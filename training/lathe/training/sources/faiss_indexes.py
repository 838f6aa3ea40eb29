"""Reader of the vectors in FAISS indexes that store uncompressed vectors.

IndexFlat                       the vectors, row by row
IndexHNSWFlat, IndexNSGFlat     a graph, and an IndexFlat as `storage`
IndexRefineFlat                 codes, and an IndexFlat as `refine_index`
IndexIVFFlat                    the vectors and their ids in inverted lists
IndexIDMap, IndexIDMap2         ids, and one of these indexes
"""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from lathe.training.errors import AccessError, SourceError
from lathe.training.sources.rows import RawBatch, Readable, Span, check_dimensions, open_native_path


def read_faiss(path: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Yield the vectors of a span of a FAISS index in batches of up to `rows`. An index of compressed vectors raises.

    If the index has ids that are not row numbers, each row also has a record `{"id": …}`. Rows are in the order in
    which they were added, or for IndexIVFFlat in the order of their ids. `field` is ignored.

    Raises:
        AccessError: if faiss is not installed.
        SourceError: if the file is damaged, or its index does not store uncompressed vectors.
    """
    with _open_faiss(path) as (vectors, ids):
        stop = vectors.count if span.stop is None else min(span.stop, vectors.count)
        for start in range(span.start, stop, rows):
            count = min(rows, stop - start)
            records = [] if ids is None else [{"id": str(number)} for number in ids[start : start + count].tolist()]
            numbers = range(start + 1, start + 1 + count)
            yield RawBatch(path.name, "row", numbers, vectors.read(start, count), records)


def read_faiss_shape(path: Readable, field: str) -> tuple[int, int]:
    """Read the number of rows and the dimensions of a FAISS index, which is loaded for that. `field` is ignored.

    Raises:
        SourceError: as in `read_faiss`.
    """
    with _open_faiss(path) as (vectors, _):
        return vectors.count, vectors.dimensions


HEADER_BYTES = 37
"""Bytes of a FAISS index header: four letters, dimensions, rows, two unused numbers, a trained flag, and the metric."""

FLAT, MAPPED = (b"IxFI", b"IxF2", b"IxFl"), (b"IxMp", b"IxM2")
"""Four-letter codes of flat FAISS indexes, and of indexes that map ids to another index."""

KEEPING = (*FLAT, b"IHNf", b"INSf", b"IxRF", b"IwFl")
"""Codes of the indexes that store uncompressed vectors."""

KEPT = "allowed are Flat, HNSWFlat, NSGFlat, IVFFlat and RefineFlat indexes, alone or under an id map"
"""Indexes that can be read, for messages."""

LIMITS = threading.Lock()
"""Lock of FAISS's limits on the memory that a file may claim, which the whole process shares."""


class _Vectors(Protocol):
    """Interface of the vectors that an index stores."""

    count: int
    dimensions: int

    def read(self, start: int, count: int) -> NDArray[np.float32]:
        """Return the vectors `(count, d)` from position `start` on, in the order of the rows."""


class _FlatVectors:
    """Vectors of an IndexFlat."""

    def __init__(self, index: Any) -> None:
        self.index = index
        self.count, self.dimensions = int(index.ntotal), int(index.d)

    def read(self, start: int, count: int) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = self.index.reconstruct_n(start, count)
        return rows


class _ListedVectors:
    """Vectors of an IndexIVFFlat, which are stored in inverted lists. Here they are in the order of their ids.

    Attributes:
        ids: id of each vector `(n,)`, ascending.
        lists: number of the list of each vector `(n,)`.
        positions: position of each vector in its list `(n,)`.
        tables: vectors of each list `(list size, d)`.
    """

    def __init__(self, faiss: Any, index: Any) -> None:
        self.dimensions = int(index.d)
        lists, sizes = index.invlists, [index.invlists.list_size(number) for number in range(index.nlist)]
        self.ids = np.zeros(0, np.int64)
        self.tables = []

        for number, size in enumerate(sizes):
            codes = faiss.rev_swig_ptr(lists.get_codes(number), size * index.code_size) if size else np.zeros(0, "u1")
            self.tables.append(codes.view(np.float32).reshape(size, self.dimensions))
            if size:
                self.ids = np.concatenate([self.ids, faiss.rev_swig_ptr(lists.get_ids(number), size)])

        # Row i of the result is row `positions[i]` of table `lists[i]`; stable, since ids may repeat.
        self.count = len(self.ids)
        order = np.argsort(self.ids, kind="stable")
        self.ids = self.ids[order]
        self.lists = np.repeat(np.arange(len(sizes)), sizes)[order]
        self.positions = np.concatenate([np.arange(size) for size in sizes])[order]

    def read(self, start: int, count: int) -> NDArray[np.float32]:
        """Return the vectors `(count, d)` from position `start` on, in the order of their ids."""
        rows = np.empty((count, self.dimensions), np.float32)
        lists, positions = self.lists[start : start + count], self.positions[start : start + count]
        # One gather for each list, not for each row.
        for number in np.unique(lists):
            rows[lists == number] = self.tables[number][positions[lists == number]]
        return rows


def _check_header(path: Readable) -> int:
    """Return the size of a FAISS index file in bytes. A truncated file, or an index of compressed vectors, raises.

    A file that is too small for the vectors that its header claims is refused. FAISS allocates memory by the header
    before it reads further: a file of 15 kB whose header claims a billion vectors would take terabytes. The claims of
    indexes other than flat ones are limited by `_limit_claims`.

    Raises:
        SourceError: if the file is not such an index, is truncated, or its vectors have too many dimensions.
    """
    with path.open("rb") as stored:
        size = stored.seek(0, io.SEEK_END)
        stored.seek(0)
        header = _read_inner_header(stored)
        counted = int.from_bytes(stored.read(8), "little")

    if header[:4] not in KEEPING:
        raise SourceError(f"{path.name} is not a FAISS index whose vectors can be read; {KEPT}")

    dimensions, rows = int.from_bytes(header[4:8], "little"), int.from_bytes(header[8:16], "little")
    if header[:4] in FLAT and max(dimensions * rows, counted) * 4 > size:
        raise SourceError(f"{path.name} is not a FAISS index that can be read: it is truncated")

    check_dimensions(path, dimensions)
    return size


def read_faiss_metric(path: Readable) -> Literal["ip", "l2"] | None:
    """Read the metric of a FAISS index from the header: "ip", "l2" (squared), or None for others and other files.

    "l2" is the squared Euclidean distance. Indexes of compressed vectors also give None.
    """
    with path.open("rb") as stored:
        header = _read_inner_header(stored)
    if header[:4] not in KEEPING:
        return None
    return {0: "ip", 1: "l2"}.get(int.from_bytes(header[33:], "little"))  # type: ignore[return-value]


def _read_inner_header(stored: IO[bytes]) -> bytes:
    """Read the 37 bytes of the header of a FAISS index. For an id map, they are the header of the mapped index."""
    header = _read_index_header(stored)
    return _read_index_header(stored) if header[:4] in MAPPED else header


def _read_index_header(stored: IO[bytes]) -> bytes:
    """Read the first 37 bytes of a FAISS index header, and skip the parameter that some metrics add."""
    header = stored.read(HEADER_BYTES)
    if int.from_bytes(header[33:], "little") > 1:
        stored.read(4)
    return header


@contextmanager
def _open_faiss(path: Readable) -> Iterator[tuple[_Vectors, NDArray[np.int64] | None]]:
    """Load a FAISS file, and yield its vectors and ids `(n,)`, None for row numbers. Compressed vectors raise.

    A damaged file, or an index without uncompressed vectors, raises. The objects are valid only within the block,
    because FAISS frees a part of an index together with the whole.

    Raises:
        AccessError: if faiss (extra `faiss`) is not installed.
        SourceError: if the file is damaged, or its index does not store uncompressed vectors.
    """
    try:
        import faiss
    except ImportError as error:
        raise AccessError("reading a FAISS index needs faiss: pip install 'lathe-training[faiss]'") from error

    try:
        size = _check_header(path)
        with open_native_path(path) as here, _limit_claims(faiss, size):
            # An index may name any other file for its lists. FAISS then looks for that file in the same folder only.
            stored_index = faiss.read_index(here, faiss.IO_FLAG_ONDISK_SAME_DIR)
    except (RuntimeError, OSError) as error:
        raise SourceError(f"{path.name} is not a FAISS index that can be read") from error

    mapped: NDArray[np.int64] | None = None
    index: Any = faiss.downcast_index(stored_index)
    if isinstance(index, faiss.IndexIDMap):
        mapped, index = faiss.vector_to_array(index.id_map), faiss.downcast_index(index.index)

    yield _find_vectors(path.name, faiss, index, mapped)


def _find_vectors(
    name: str, faiss: Any, index: Any, mapped: NDArray[np.int64] | None
) -> tuple[_Vectors, NDArray[np.int64] | None]:
    """Return a reader of a FAISS index's vectors, and their ids, None for row numbers. Compressed vectors raise.

    An index without uncompressed vectors, or whose ids do not match, raises.

    Args:
        name: name of the file, for messages.
        faiss: the module.
        index: the index without an id map.
        mapped: ids of an id map; None for the index's own ids.

    Raises:
        SourceError: if the index does not store uncompressed vectors in this file, or the ids do not match the vectors.
    """
    if isinstance(index, faiss.IndexIVFFlat):
        if not isinstance(faiss.downcast_InvertedLists(index.invlists), faiss.ArrayInvertedLists):
            raise SourceError(f"{name} stores its vectors in another file: write the index with its lists in memory")
        listed = _ListedVectors(faiss, index)
        if mapped is not None and not np.array_equal(listed.ids, np.arange(len(mapped))):
            raise SourceError(f"{name} is not a FAISS index that can be read: its id map does not match its ids")
        ids = listed.ids if mapped is None else mapped
        return listed, None if np.array_equal(ids, np.arange(listed.count)) else ids

    if isinstance(index, faiss.IndexHNSWFlat | faiss.IndexNSGFlat):
        index = faiss.downcast_index(index.storage)
    elif isinstance(index, faiss.IndexRefineFlat):
        index = faiss.downcast_index(index.refine_index)

    if not isinstance(index, faiss.IndexFlat):
        raise SourceError(f"{name} is a {type(index).__name__}; {KEPT}")
    if mapped is not None and len(mapped) != index.ntotal:
        raise SourceError(f"{name} cannot be read: it has {len(mapped):,} ids for {index.ntotal:,} vectors")

    return _FlatVectors(index), mapped


@contextmanager
def _limit_claims(faiss: Any, size: int) -> Iterator[None]:
    """Limit, within the block, how much memory FAISS may allocate because the header of a file claims it.

    Arrays may take `size` bytes, and there may be `size` lists. The limits of the process are restored after the block.
    """
    with LIMITS:
        before = faiss.get_deserialization_vector_byte_limit(), faiss.get_deserialization_loop_limit()
        faiss.set_deserialization_vector_byte_limit(size)
        faiss.set_deserialization_loop_limit(size)
        try:
            yield
        finally:
            faiss.set_deserialization_vector_byte_limit(before[0])
            faiss.set_deserialization_loop_limit(before[1])
