"""Readers of parquet files, through pyarrow."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from training.errors import AccessError, EmptyError, SourceError
from training.sources.kinds import Kind
from training.sources.parquet_pages import dictionary_bytes
from training.sources.raw import BATCH_BYTES_MOST, RawBatch, Readable, Record, Span, bounded_batches

ROW_BYTES_MOST = 2**24
"""Maximum average bytes of a row in a parquet row group once decompressed; the same as for a line."""


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
