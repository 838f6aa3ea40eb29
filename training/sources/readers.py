"""Readers of rows from files, one set of functions for each file format."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from training.errors import AccessError, EmptyError, SourceError
from training.sources.docstrings import docstring_paragraphs, topic_paragraphs
from training.sources.kinds import Kind, checked, kind_of
from training.sources.lines import line_spans, read_jsonl, read_text
from training.sources.parquet_pages import dictionary_bytes
from training.sources.raw import (
    BATCH_BYTES_MOST,
    WHOLE,
    RawBatch,
    Readable,
    Record,
    Span,
    bounded_batches,
    native_path,
    require_width,
)
from training.sources.remote import RemoteFile
from training.sources.stores import read_faiss, read_hdf5, shape_of_faiss, shape_of_hdf5
from transforms.vectors import FloatArray

ROW_BYTES_MOST = 2**24
"""Maximum average bytes of a row in a parquet row group once decompressed; the same as for a line."""

BUILT_IN = {"pydoc:": docstring_paragraphs, "pydoc:topics": topic_paragraphs}
"""Sources that need no file: a function that returns the texts, by the name that a user writes."""

Reader = Callable[[Any, str, int, Span], Iterator[RawBatch]]
"""Function of a file, a field, the maximum rows of a batch and a span, which yields the span's rows in batches."""


@dataclass(frozen=True)
class Format:
    """Functions that read the files of one format.

    Attributes:
        read: yields the rows in batches of at most a number of rows.
        spans: counts the rows and returns them as spans of a given number of rows.
        shape: returns rows and dimensions, for formats that hold only vectors; None for others.
        schema: returns the kind of the rows from the file's header and raises if there are no rows; None for formats
            whose header does not tell.
        far: whether the rows of a remote file can be counted, and the first be read, without downloading the file.
    """

    read: Reader
    spans: Callable[[Any, str, int], list[Span]]
    shape: Callable[[Any, str], tuple[int, int]] | None = None
    schema: Callable[[Any, str], Kind] | None = None
    far: bool = True


def file_format(name: str) -> str:
    """Return the key of `FORMATS` with which a file name ends, such as '.jsonl.gz'; '' if the format is unknown."""
    return next((ending for ending in FORMATS if name.endswith(ending)), "")


def format_of(file: Readable) -> Format:
    """Return the `Format` of a file, by its name; raise `KeyError` if the format is unknown."""
    return BUILT_IN_FORMAT if str(file) in BUILT_IN else FORMATS[file_format(file.name)]


def read_rows(file: Readable, field: str, rows: int, span: Span = WHOLE) -> Iterator[RawBatch]:
    """Read the rows of a span from a file of any known format; yield batches of up to `rows`.

    Args:
        file: the file.
        field: field, column or data set that holds the texts or vectors.
        rows: maximum rows of a batch.
        span: rows to read.

    Raises:
        SourceError: if the file is damaged or lacks the field; names file and row.
    """
    return format_of(file).read(file, field, rows, span)


def spans_of(file: Readable, field: str, size: int) -> list[Span]:
    """Return the spans of `size` rows that cover a file; the list is empty for a file without rows.

    Raises:
        SourceError: if the file is damaged.
    """
    return format_of(file).spans(file, field, size)


def first_kind(file: Readable, field: str, by_header: bool = False) -> Kind:
    """Return the kind of a file's rows, by its header or its first row: None for texts, d for vectors of d dimensions.

    Args:
        file: the file.
        field: field, column or data set that holds the texts or vectors.
        by_header: read only the header of a parquet file, because a row can decompress to gigabytes. The header does
            not tell the dimensions of vectors; the kind is then 1.

    Raises:
        EmptyError: if the file has no rows.
        SourceError: if the file is damaged or lacks the field.
    """
    found = format_of(file)
    if found.shape is not None:
        rows, width = found.shape(file, field)
        if rows:
            return width
    elif by_header and found.schema is not None:
        return found.schema(file, field)
    elif (raw := next(found.read(file, field, 1, WHOLE), None)) is not None:
        checked(raw, kind_of(raw))
        return kind_of(raw)
    raise EmptyError(f"{file.name} holds no rows")


def even_spans(count: Callable[[Any, str], int], file: Readable, field: str, size: int) -> list[Span]:
    """Return the spans of `size` rows that cover a file whose number of rows is `count(file, field)`."""
    rows = count(file, field)
    return [Span(start=start, stop=min(start + size, rows)) for start in range(0, rows, size)]


def vectors_format(read: Reader, shape: Callable[[Any, str], tuple[int, int]], far: bool = True) -> Format:
    """Build the `Format` of files that hold only vectors; `shape` returns their rows and dimensions."""
    return Format(read, partial(even_spans, lambda file, field: shape(file, field)[0]), shape, far=far)


def read_parquet(file: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Read the rows of a span from a parquet file; yield batches of up to `rows` with the values of the column `field`.

    The batches also hold the whole rows as dicts.

    Raises:
        AccessError: if pyarrow is not installed.
        SourceError: if the file is damaged, lacks the column, or its rows take too much memory.
    """

    def refusal(some: list[Record]) -> str:
        """Return the error message for rows of which the last exceeds the limit."""
        return f"{file.name}: {len(some)} rows take more than {BATCH_BYTES_MOST:,} bytes, unpacked"

    start = span.start
    for some in bounded_batches(parquet_records(file, field, rows, span), rows, refusal):
        numbers = range(start, start + len(some))
        yield RawBatch(file.name, "row", numbers, [record[field] for record in some], some)
        start += len(some)


def parquet_records(file: Readable, field: str, rows: int, span: Span) -> Iterator[tuple[Record, float]]:
    """Yield each row of a span of a parquet file as a dict, with the average bytes that a row of its batch takes.

    Row groups that end before the span are not read.

    Raises:
        SourceError: if the file is damaged, lacks the column, or its rows take too much memory.
    """
    with open_parquet(file) as parquet, file.open("rb") as stored:
        require_column(file, parquet, field)
        row, stop = 0, span.stop
        for group in range(parquet.num_row_groups):
            size = parquet.metadata.row_group(group).num_rows
            if row + size <= span.start:
                row += size
                continue
            if stop is not None and row >= stop:
                return
            try:
                parts = parquet.iter_batches(batch_rows(file, stored, parquet, group, rows), row_groups=[group])
                for part in parts:
                    if stop is not None and row >= stop:
                        return
                    wanted = part.slice(max(span.start - row, 0), None if stop is None else stop - max(row, span.start))
                    row += part.num_rows
                    if (taken := wanted.nbytes) > BATCH_BYTES_MOST:
                        raise SourceError(f"{file.name}: {len(wanted):,} rows take {taken:,} bytes, unpacked")
                    for record in wanted.to_pylist():
                        yield record, taken / len(wanted)
            except (arrow_exception(), OSError, ValueError, OverflowError) as error:
                raise SourceError(f"{file.name} cannot be read after row {row}: {error}") from error


def batch_rows(file: Readable, stored: IO[bytes], parquet: Any, group: int, rows: int) -> int:
    """Return how many rows of a row group to decompress at once: `rows`, or fewer if the largest value may be huge.

    Raises:
        SourceError: if the rows take more than `ROW_BYTES_MOST` each on average.
        ValueError: if the page headers are damaged.
    """
    metadata = parquet.metadata.row_group(group)
    if metadata.total_byte_size > ROW_BYTES_MOST * max(metadata.num_rows, 1):
        raise SourceError(
            f"{file.name}: {metadata.num_rows:,} rows take {metadata.total_byte_size:,} bytes, unpacked; at most "
            f"{ROW_BYTES_MOST:,} each are read"
        )
    columns = (metadata.column(number) for number in range(metadata.num_columns))
    largest = max(dictionary_bytes(stored, column) for column in columns if column.num_values)
    return max(1, min(rows, BATCH_BYTES_MOST // max(largest, 1)))


def require_column(file: Readable, parquet: Any, field: str) -> None:
    """Raise `SourceError` unless an open parquet file has the column `field`."""
    if field not in parquet.schema_arrow.names:
        columns = ", ".join(parquet.schema_arrow.names)
        raise SourceError(f"{file.name} has no column {field!r}; it has {columns}. Name one as FILE#COLUMN")


def schema_of_parquet(file: Readable, field: str) -> Kind:
    """Return the kind of a parquet column from the schema: None for texts, 1 for lists, whatever their length.

    Raises:
        EmptyError: if the file has no rows.
        SourceError: if the file is damaged, or the column is missing or holds neither texts nor lists.
    """
    from pyarrow import types

    with open_parquet(file) as parquet:
        require_column(file, parquet, field)
        if not parquet.metadata.num_rows:
            raise EmptyError(f"{file.name} holds no rows")
        found = parquet.schema_arrow.field(field).type
    found = found.value_type if types.is_dictionary(found) else found
    if types.is_string(found) or types.is_large_string(found) or types.is_string_view(found):
        return None
    if types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found):
        return 1
    raise SourceError(f"{file.name}: the column {field!r} is {found}, neither texts nor vectors")


def open_parquet(file: Readable) -> Any:
    """Open a parquet file with pyarrow and return the `ParquetFile`.

    Raises:
        AccessError: if pyarrow (extra `parquet`) is not installed.
        SourceError: if the file is damaged.
    """
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise AccessError("reading parquet needs pyarrow: pip install 'lathe[parquet]'") from error
    try:
        return ParquetFile(file if isinstance(file, Path) else file.open("rb"))
    except (arrow_exception(), OSError) as error:
        raise SourceError(f"{file.name} is not a parquet file that can be read: {error}") from error


def arrow_exception() -> type[Exception]:
    """Return the base class of pyarrow's exceptions, imported on call because pyarrow is optional."""
    from pyarrow import ArrowException

    found: type[Exception] = ArrowException
    return found


def count_parquet(file: Readable, field: str) -> int:
    """Return the number of rows of a parquet file, from its footer; `field` is ignored."""
    with open_parquet(file) as parquet:
        return int(parquet.metadata.num_rows)


def read_npy(file: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Read the rows of a span from a .npy file through a memmap; yield batches of up to `rows` vectors.

    The vectors are in the file's dtype. `field` is ignored.

    Raises:
        SourceError: if the file is damaged or does not hold floats `(n, d)`.
    """
    vectors = require_floats(file, open_npy(file))[: span.stop]
    for start in range(span.start, vectors.shape[0], rows):
        block = np.array(vectors[start : start + rows])
        yield RawBatch(file.name, "row", range(start, start + len(block)), block, [])


def shape_of_npy(file: Readable, field: str) -> tuple[int, int]:
    """Return rows and dimensions of a .npy file from its header; `field` is ignored."""
    rows, width = require_floats(file, open_npy(file)).shape
    return int(rows), int(width)


def open_npy(file: Readable) -> FloatArray:
    """Return the array of a local .npy file as a memmap; for a remote file, a placeholder of its shape and dtype.

    The placeholder takes no memory, and its values are zeros.

    Raises:
        SourceError: if the file is damaged or out of reach.
    """
    try:
        if isinstance(file, RemoteFile):
            return outline_of_npy(file)
        with native_path(file) as path:
            return np.lib.format.open_memmap(path, mode="r")
    except AccessError:
        raise
    except Exception as error:  # NumPy parses the header as Python source, with that parser's errors
        raise SourceError(f"{file.name} is not a .npy file that can be read: {error!r}") from error


def outline_of_npy(file: Readable) -> FloatArray:
    """Read the header of a .npy file and return zeros of its shape and dtype that take no memory.

    Raises:
        ValueError: if the file is shorter than the header says.
    """
    with file.open("rb") as stored:
        version = np.lib.format.read_magic(stored)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, _, dtype = read(stored)
        header = stored.tell()
        if stored.seek(0, 2) < header + dtype.itemsize * int(np.prod(shape)):
            raise ValueError("it is truncated")
    return np.broadcast_to(np.zeros((), dtype), shape)


def require_floats(file: Readable, vectors: FloatArray) -> FloatArray:
    """Return the vectors unchanged if they are floats `(n, d)` with 1 ≤ d ≤ `WIDTH_MOST`; else raise.

    Raises:
        SourceError: for another shape or dtype.
    """
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or vectors.shape[1] == 0:
        raise SourceError(f"{file.name} must hold floats of the shape (n, d), not {vectors.dtype} {vectors.shape}")
    require_width(file, vectors.shape[1])
    return vectors


def read_built_in(file: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Read the rows of a span from a built-in source; yield batches of up to `rows` texts. `field` is ignored."""
    texts = BUILT_IN[str(file)]()[: span.stop]
    for start in range(span.start, len(texts), rows):
        part = texts[start : start + rows]
        yield RawBatch(str(file), "row", range(start, start + len(part)), part, [])


BUILT_IN_FORMAT = Format(read_built_in, partial(even_spans, lambda file, _: len(BUILT_IN[str(file)]())))
"""Format of the built-in sources."""

FORMATS: dict[str, Format] = {
    ".jsonl": Format(read_jsonl, line_spans),
    ".jsonl.gz": Format(read_jsonl, line_spans),
    ".txt": Format(read_text, line_spans),
    ".txt.gz": Format(read_text, line_spans),
    ".parquet": Format(read_parquet, partial(even_spans, count_parquet), schema=schema_of_parquet),
    ".npy": vectors_format(read_npy, shape_of_npy),
    ".hdf5": vectors_format(read_hdf5, shape_of_hdf5, far=False),
    ".faiss": vectors_format(read_faiss, shape_of_faiss, far=False),
}
"""Formats by the end of the file name."""
