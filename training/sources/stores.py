"""Reading vectors from other software's stores: ann-benchmarks' HDF5 files and flat FAISS indexes."""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from training.errors import AccessError, SourceError
from training.sources.raw import BATCH_BYTES_MOST, RawBatch, Readable, Span, native_path, require_width

TRAIN = "train"
"""What ann-benchmarks calls the vectors to be searched."""


def read_hdf5(path: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Vectors `(n, d)` of a data set of the file; `train` unless another is named."""
    with open_hdf5(path) as file:
        vectors = dataset(file, path, field)
        stop = vectors.shape[0] if span.stop is None else min(span.stop, vectors.shape[0])
        for start in range(span.start, stop, rows):
            try:
                block = np.asarray(vectors[start : min(start + rows, stop)])
            except OSError as error:
                raise SourceError(f"{path.name} cannot be read after row {start}: {error}") from error
            yield RawBatch(path.name, "row", range(start, start + len(block)), block, [])


def shape_of_hdf5(path: Readable, field: str) -> tuple[int, int]:
    """Rows and width of the data set, from the file's header."""
    with open_hdf5(path) as file:
        rows, width = dataset(file, path, field).shape
        return int(rows), int(width)


def dataset(file: Any, path: Readable, field: str) -> Any:
    """A data set of floats.

    Raises:
        SourceError: if there is none of that name, or it holds something else.
    """
    name = TRAIN if field == "text" else field  # nobody named one
    if name not in file or not hasattr(file[name], "shape"):
        raise SourceError(f"{path.name} has no data set {name!r}; it has {', '.join(file)}. Name one as FILE#NAME")
    found = file[name]
    if len(found.shape) != 2 or found.dtype.kind != "f" or found.shape[1] == 0:
        raise SourceError(f"{path.name}#{name} must hold floats of the shape (n, d), not {found.dtype} {found.shape}")
    require_width(path, int(found.shape[1]))
    if found.chunks and math.prod(found.chunks) * found.dtype.itemsize > BATCH_BYTES_MOST:  # each is unpacked whole
        raise SourceError(f"{path.name}#{name} has chunks {found.chunks} of more than {BATCH_BYTES_MOST:,} bytes")
    return found


@contextmanager
def open_hdf5(path: Readable) -> Iterator[Any]:
    """An HDF5 file, by the extra `hdf5`.

    Raises:
        AccessError: if the extra is not installed.
        SourceError: if the file is damaged.
    """
    try:
        import h5py
    except ImportError as error:
        raise AccessError("reading HDF5 needs h5py: pip install 'lathe[hdf5]'") from error
    try:
        with native_path(path) as here:
            file = h5py.File(here, "r")
    except OSError as error:
        raise SourceError(f"{path.name} is not an HDF5 file that can be read: {error}") from error
    with file:
        yield file


def read_faiss(path: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Vectors `(n, d)` of a flat index; where it maps ids, each row is a record with its `id`."""
    with open_faiss(path) as (flat, ids):
        stop = flat.ntotal if span.stop is None else min(span.stop, flat.ntotal)
        for start in range(span.start, stop, rows):
            count = min(rows, stop - start)
            records = [] if ids is None else [{"id": str(number)} for number in ids[start : start + count].tolist()]
            yield RawBatch(path.name, "row", range(start, start + count), flat.reconstruct_n(start, count), records)


def shape_of_faiss(path: Readable, field: str) -> tuple[int, int]:
    """Rows and width."""
    with open_faiss(path) as (flat, _):
        return int(flat.ntotal), int(flat.d)


HEADER_BYTES = 37
"""Of a FAISS index: four letters, width, rows, two unused numbers, whether it is trained, and its metric."""

FLAT, MAPPED = (b"IxFI", b"IxF2", b"IxFl"), (b"IxMp", b"IxM2")


def require_flat(path: Readable) -> None:
    """Raise `SourceError` unless a file begins as a flat index, of no more vectors than it has bytes for.

    FAISS makes room for what a header says before it reads on: 15 kB that speak of a billion vectors take terabytes.
    """
    with path.open("rb") as stored:
        size = stored.seek(0, io.SEEK_END)
        stored.seek(0)
        header = index_header(stored)
        if header[:4] in MAPPED:  # the index it maps to ids follows
            header = index_header(stored)
        counted = stored.read(8)
    if header[:4] not in FLAT:
        raise SourceError(
            f"{path.name} is not a flat FAISS index that can be read; only flat indexes keep the vectors as they were"
        )
    width, rows = int.from_bytes(header[4:8], "little"), int.from_bytes(header[8:16], "little")
    if max(width * rows, int.from_bytes(counted, "little")) * 4 > size:
        raise SourceError(f"{path.name} is not a FAISS index that can be read: it is truncated")
    require_width(path, width)


def index_header(stored: IO[bytes]) -> bytes:
    """Read the header of a FAISS index, with the parameter that some metrics have."""
    header = stored.read(HEADER_BYTES)
    if int.from_bytes(header[33:], "little") > 1:
        stored.read(4)
    return header


@contextmanager
def open_faiss(path: Readable) -> Iterator[tuple[Any, Any]]:
    """The flat index in a FAISS file and its ids, by the extra `faiss`; None where ids are row numbers.

    A context: FAISS frees a part of an index with the whole.

    Raises:
        AccessError: if the extra is not installed.
        SourceError: if the file is damaged, or the index keeps no vectors.
    """
    try:
        import faiss
    except ImportError as error:
        raise AccessError("reading a FAISS index needs faiss: pip install 'lathe[faiss]'") from error
    try:
        require_flat(path)
        with native_path(path) as here:
            whole = faiss.read_index(here)
    except (RuntimeError, OSError) as error:
        raise SourceError(f"{path.name} is not a FAISS index that can be read") from error
    ids, flat = None, faiss.downcast_index(whole)
    if isinstance(flat, faiss.IndexIDMap):
        ids, flat = faiss.vector_to_array(flat.id_map), faiss.downcast_index(flat.index)
    if not isinstance(flat, faiss.IndexFlat):
        raise SourceError(f"{path.name} is a {type(flat).__name__}; only flat indexes keep the vectors as they were")
    yield flat, ids
