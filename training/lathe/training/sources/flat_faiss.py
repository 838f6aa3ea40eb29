"""Reader of the vectors in flat FAISS indexes."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Literal

from lathe.training.errors import AccessError, SourceError
from lathe.training.sources.raw import RawBatch, Readable, Span, native_path, require_dimensions


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
        header = _read_flat_header(stored)
        counted = stored.read(8)
    if header[:4] not in FLAT:
        raise SourceError(
            f"{path.name} is not a flat FAISS index that can be read; only flat indexes keep the vectors as they were"
        )
    width, rows = int.from_bytes(header[4:8], "little"), int.from_bytes(header[8:16], "little")
    if max(width * rows, int.from_bytes(counted, "little")) * 4 > size:
        raise SourceError(f"{path.name} is not a FAISS index that can be read: it is truncated")
    require_dimensions(path, width)


def read_faiss_metric(path: Readable) -> Literal["ip", "l2"] | None:
    """Return the metric of a flat FAISS index from its header; None if the file is none."""
    with path.open("rb") as stored:
        header = _read_flat_header(stored)
    if header[:4] not in FLAT:
        return None
    return {0: "ip", 1: "l2"}.get(int.from_bytes(header[33:], "little"))  # type: ignore[return-value]


def _read_flat_header(stored: IO[bytes]) -> bytes:
    """Read the header of an index, or of the one that it maps to ids, which follows its own; return its 37 bytes."""
    header = _read_index_header(stored)
    return _read_index_header(stored) if header[:4] in MAPPED else header


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
