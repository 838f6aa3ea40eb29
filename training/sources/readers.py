"""Reading rows from files, each format by its own functions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from training.errors import AccessError, EmptyError, SourceError
from training.sources.docstrings import docstring_paragraphs, topic_paragraphs
from training.sources.kinds import Kind, checked, kind_of
from training.sources.lines import line_spans, read_jsonl, read_text
from training.sources.parquet_pages import dictionary_bytes
from training.sources.raw import BATCH_BYTES_MOST, WHOLE, RawBatch, Readable, Record, Span, native_path, require_width
from training.sources.remote import RemoteFile
from training.sources.stores import read_faiss, read_hdf5, shape_of_faiss, shape_of_hdf5
from transforms.vectors import FloatArray

ROW_BYTES_MOST = 2**24
"""Of a parquet file's rows on average, as of a line."""

BUILT_IN = {"pydoc:": docstring_paragraphs, "pydoc:topics": topic_paragraphs}
"""Texts that are always there, by what a user writes."""

Reader = Callable[[Any, str, int, Span], Iterator[RawBatch]]
"""Of a file, a field, rows in a batch and a span."""


@dataclass(frozen=True)
class Format:
    """How files of one kind are read.

    Attributes:
        read: gives their rows, at most so many at a time.
        spans: counts their rows, in spans of a size.
        shape: of those that hold nothing but vectors; None for others.
        schema: what rows are by the file's header, an error if it has none; None for formats that do not say.
        far: whether rows can be counted, and the first be read, without fetching the file.
    """

    read: Reader
    spans: Callable[[Any, str, int], list[Span]]
    shape: Callable[[Any, str], tuple[int, int]] | None = None
    schema: Callable[[Any, str], Kind] | None = None
    far: bool = True


def file_format(name: str) -> str:
    """The format that a file's name ends with; empty if unknown."""
    return next((ending for ending in FORMATS if name.endswith(ending)), "")


def format_of(file: Readable) -> Format:
    """How a file is read."""
    return BUILT_IN_FORMAT if str(file) in BUILT_IN else FORMATS[file_format(file.name)]


def read_rows(file: Readable, field: str, rows: int, span: Span = WHOLE) -> Iterator[RawBatch]:
    """A file's rows, at most so many at a time.

    Raises:
        SourceError: if it is damaged or lacks the field, with file and row.
    """
    return format_of(file).read(file, field, rows, span)


def spans_of(file: Readable, field: str, size: int) -> list[Span]:
    """A file's rows in spans of a size; none where it holds nothing.

    Raises:
        SourceError: if it is damaged.
    """
    return format_of(file).spans(file, field, size)


def first_kind(file: Readable, field: str, by_header: bool = False) -> Kind:
    """What a file holds, by its header or its first row.

    Args:
        file: to look into.
        field: of its rows.
        by_header: read no row where the header says whether they are texts: a row can unpack to gigabytes. Vectors
            whose width it does not say are then 1 wide.

    Raises:
        EmptyError: if it holds nothing.
        SourceError: if it is damaged, or lacks the field.
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
    """Spans of a file that says how many rows it has."""
    rows = count(file, field)
    return [Span(start=start, stop=min(start + size, rows)) for start in range(0, rows, size)]


def vectors_format(read: Reader, shape: Callable[[Any, str], tuple[int, int]], far: bool = True) -> Format:
    """The format of files that hold nothing but vectors."""
    return Format(read, partial(even_spans, lambda file, field: shape(file, field)[0]), shape, far=far)


def read_parquet(file: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Rows with the column."""
    records, start = parquet_records(file, field, rows, span), span.start
    while some := batch_of_records(file, records, rows):
        numbers = range(start, start + len(some))
        yield RawBatch(file.name, "row", numbers, [record[field] for record in some], some)
        start += len(some)


def batch_of_records(file: Readable, records: Iterator[tuple[Record, float]], rows: int) -> list[Record]:
    """Return the next records, at most so many, of those that come with the bytes that each takes.

    Raises:
        SourceError: if they take more than `BATCH_BYTES_MOST`.
    """
    some, size = [], 0.0
    for record, taken in islice(records, rows):
        some.append(record)
        size += taken
        if size > BATCH_BYTES_MOST:
            raise SourceError(f"{file.name}: {len(some)} rows take more than {BATCH_BYTES_MOST:,} bytes, unpacked")
    return some


def parquet_records(file: Readable, field: str, rows: int, span: Span) -> Iterator[tuple[Record, float]]:
    """Rows of a span, each with the bytes it takes; row groups that end before it are not read."""
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
    """Return how many rows of a group to unpack at once: fewer than `rows` where many could be one huge value.

    Raises:
        SourceError: if its rows are huge on average.
        ValueError: if its pages are damaged.
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
    """Raise `SourceError` unless a parquet file has the column."""
    if field not in parquet.schema_arrow.names:
        columns = ", ".join(parquet.schema_arrow.names)
        raise SourceError(f"{file.name} has no column {field!r}; it has {columns}. Name one as FILE#COLUMN")


def schema_of_parquet(file: Readable, field: str) -> Kind:
    """Whether a column holds texts, by the schema; lists are vectors of 1 number, for it does not say of how many.

    Raises:
        EmptyError: if the file holds no rows.
        SourceError: if the column holds neither.
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
    """A parquet file, by the extra `parquet`.

    Raises:
        AccessError: if the extra is not installed.
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
    """The root of pyarrow's errors."""
    from pyarrow import ArrowException

    found: type[Exception] = ArrowException
    return found


def count_parquet(file: Readable, field: str) -> int:
    """Rows, from the file's footer."""
    with open_parquet(file) as parquet:
        return int(parquet.metadata.num_rows)


def read_npy(file: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Vectors `(n, d)` of any float dtype, through a memmap."""
    vectors = require_floats(file, open_npy(file))[: span.stop]
    for start in range(span.start, vectors.shape[0], rows):
        block = np.array(vectors[start : start + rows])
        yield RawBatch(file.name, "row", range(start, start + len(block)), block, [])


def shape_of_npy(file: Readable, field: str) -> tuple[int, int]:
    """Rows and width, from the file's header."""
    rows, width = require_floats(file, open_npy(file)).shape
    return int(rows), int(width)


def open_npy(file: Readable) -> FloatArray:
    """A memmap of a .npy file; of one that is elsewhere, an array of its shape that takes no memory.

    Raises:
        SourceError: if it is damaged, or cannot be got at.
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
    """An array without content in the shape that a header says.

    Raises:
        ValueError: if the file is shorter than that takes.
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
    """The vectors.

    Raises:
        SourceError: if they are something other than rows of floats.
    """
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or vectors.shape[1] == 0:
        raise SourceError(f"{file.name} must hold floats of the shape (n, d), not {vectors.dtype} {vectors.shape}")
    require_width(file, vectors.shape[1])
    return vectors


def read_built_in(file: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Texts of the Python installation."""
    texts = BUILT_IN[str(file)]()[: span.stop]
    for start in range(span.start, len(texts), rows):
        part = texts[start : start + rows]
        yield RawBatch(str(file), "row", range(start, start + len(part)), part, [])


BUILT_IN_FORMAT = Format(read_built_in, partial(even_spans, lambda file, _: len(BUILT_IN[str(file)]())))

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
"""By the end of the file's name."""
