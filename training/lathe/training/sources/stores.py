"""Readers of vectors from other software's files: ann-benchmarks' HDF5 files and flat FAISS indexes."""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from lathe.training.errors import AccessError, SourceError
from lathe.training.sources.raw import MAX_BATCH_BYTES, RawBatch, Readable, Span, native_path, require_dimensions

TRAIN = "train"
"""Name of the data set that holds the vectors to be searched in ann-benchmarks' files."""


def read_hdf5(path: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Read the rows of a span from the HDF5 data set `field`; yield batches of up to `rows` vectors.

    If the field is the default 'text', the data set is `train`.

    Raises:
        AccessError: if h5py is not installed.
        SourceError: if the file is damaged, or the data set is missing or does not hold floats `(n, d)`.
    """
    with open_hdf5(path) as file:
        vectors = _open_dataset(file, path, field)
        stop = vectors.shape[0] if span.stop is None else min(span.stop, vectors.shape[0])
        for start in range(span.start, stop, rows):
            try:
                block = np.asarray(vectors[start : min(start + rows, stop)])
            except OSError as error:
                raise SourceError(f"{path.name} cannot be read after row {start}: {error}") from error
            yield RawBatch(path.name, "row", range(start, start + len(block)), block, [])


def read_hdf5_shape(path: Readable, field: str) -> tuple[int, int]:
    """Return rows and dimensions of an HDF5 data set, from the file's header.

    Raises:
        SourceError: as in `read_hdf5`.
    """
    with open_hdf5(path) as file:
        rows, width = _open_dataset(file, path, field).shape
        return int(rows), int(width)


def _open_dataset(file: Any, path: Readable, field: str) -> Any:
    """Return the HDF5 data set named `field`, or `train` if the field is the default 'text'; its content is not read.

    Args:
        file: open h5py file.
        path: its name appears in messages.
        field: name of the data set.

    Raises:
        SourceError: if there is no such data set, it does not hold floats `(n, d)`, or its chunks take too much memory.
    """
    name = TRAIN if field == "text" else field  # nobody named one
    if name not in file or not hasattr(file[name], "shape"):
        raise SourceError(f"{path.name} has no data set {name!r}; it has {', '.join(file)}. Name one as FILE#NAME")
    found = file[name]
    if len(found.shape) != 2 or found.dtype.kind != "f" or found.shape[1] == 0:
        raise SourceError(f"{path.name}#{name} must hold floats of the shape (n, d), not {found.dtype} {found.shape}")
    require_dimensions(path, int(found.shape[1]))
    if found.chunks and math.prod(found.chunks) * found.dtype.itemsize > MAX_BATCH_BYTES:  # each is unpacked whole
        raise SourceError(f"{path.name}#{name} has chunks {found.chunks} of more than {MAX_BATCH_BYTES:,} bytes")
    return found


@contextmanager
def open_hdf5(path: Readable) -> Iterator[Any]:
    """Open an HDF5 file with h5py, yield it, and close it after the block.

    Raises:
        AccessError: if h5py (extra `hdf5`) is not installed.
        SourceError: if the file is damaged.
    """
    try:
        import h5py
    except ImportError as error:
        raise AccessError("reading HDF5 needs h5py: pip install 'lathe-training[hdf5]'") from error
    try:
        with native_path(path) as here:
            file = h5py.File(here, "r")
    except OSError as error:
        raise SourceError(f"{path.name} is not an HDF5 file that can be read: {error}") from error
    with file:
        yield file


def read_faiss(path: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Read the rows of a span from a flat FAISS index; yield batches of up to `rows` vectors.

    If the index maps ids, each row has a record `{"id": …}`. `field` is ignored.

    Raises:
        AccessError: if faiss is not installed.
        SourceError: if the file is damaged or not a flat index.
    """
    with _open_faiss(path) as (flat, ids):
        stop = flat.ntotal if span.stop is None else min(span.stop, flat.ntotal)
        for start in range(span.start, stop, rows):
            count = min(rows, stop - start)
            records = [] if ids is None else [{"id": str(number)} for number in ids[start : start + count].tolist()]
            yield RawBatch(path.name, "row", range(start, start + count), flat.reconstruct_n(start, count), records)


def read_faiss_shape(path: Readable, field: str) -> tuple[int, int]:
    """Return rows and dimensions of a flat FAISS index; `field` is ignored.

    Raises:
        SourceError: as in `read_faiss`.
    """
    with _open_faiss(path) as (flat, _):
        return int(flat.ntotal), int(flat.d)


HEADER_BYTES = 37
"""Bytes of a FAISS index header: four letters, dimensions, rows, two unused numbers, a trained flag, and the metric."""

FLAT, MAPPED = (b"IxFI", b"IxF2", b"IxFl"), (b"IxMp", b"IxM2")
"""Four-letter codes of flat FAISS indexes, and of indexes that map ids to another index."""


def _require_flat(path: Readable) -> None:
    """Raise `SourceError` unless a file's header is that of a flat index, and the file is large enough for its vectors.

    FAISS allocates memory by the header before it reads further: a file of 15 kB whose header claims a billion vectors
    would take terabytes.
    """
    with path.open("rb") as stored:
        size = stored.seek(0, io.SEEK_END)
        stored.seek(0)
        header = _read_index_header(stored)
        if header[:4] in MAPPED:  # the index it maps to ids follows
            header = _read_index_header(stored)
        counted = stored.read(8)
    if header[:4] not in FLAT:
        raise SourceError(
            f"{path.name} is not a flat FAISS index that can be read; only flat indexes keep the vectors as they were"
        )
    width, rows = int.from_bytes(header[4:8], "little"), int.from_bytes(header[8:16], "little")
    if max(width * rows, int.from_bytes(counted, "little")) * 4 > size:
        raise SourceError(f"{path.name} is not a FAISS index that can be read: it is truncated")
    require_dimensions(path, width)


def _read_index_header(stored: IO[bytes]) -> bytes:
    """Read a FAISS index header from the stream and return its 37 bytes; skip the parameter that some metrics have."""
    header = stored.read(HEADER_BYTES)
    if int.from_bytes(header[33:], "little") > 1:
        stored.read(4)
    return header


@contextmanager
def _open_faiss(path: Readable) -> Iterator[tuple[Any, Any]]:
    """Load a FAISS file and yield its flat index and the array of ids `(n,)`, None if the ids are row numbers.

    The objects are valid only within the block, because FAISS frees a part of an index with the whole.

    Raises:
        AccessError: if faiss (extra `faiss`) is not installed.
        SourceError: if the file is damaged or not a flat index.
    """
    try:
        import faiss
    except ImportError as error:
        raise AccessError("reading a FAISS index needs faiss: pip install 'lathe-training[faiss]'") from error
    try:
        _require_flat(path)
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
