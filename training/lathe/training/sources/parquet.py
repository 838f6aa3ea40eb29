"""Reader of parquet files with pyarrow, which limits the memory that the decompressed rows may take.

A column that repeats one text in a thousand rows is stored as a dictionary of that text and a thousand indices: a file
of a kilobyte can hold gigabytes of rows. So the memory that rows take is estimated from page headers, before anything
is decompressed. pyarrow does not expose these headers; the first functions parse their first two fields.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from lathe.training.errors import AccessError, EmptyError, SourceError
from lathe.training.sources.rows import MAX_BATCH_BYTES, Kind, RawBatch, Readable, Record, Span

DICTIONARY_PAGE = 2
"""Type of a dictionary page in a parquet page header."""

NEXT_I32 = 0x15
"""Byte of Thrift's compact protocol that announces the next field as a 32-bit integer. A page header begins with two
such fields: the page's type, and its uncompressed size."""

HEADER_BYTES = 16
"""Bytes read of a page header, enough for its first two fields."""


def _read_dictionary_size(stored: IO[bytes], column: Any) -> int:
    """Read the uncompressed size in bytes of the dictionary page of a parquet column chunk. Without one, it is 0.

    No value stored in the dictionary is larger. The position in the file changes.

    Raises:
        ValueError: if the header of the first page is damaged.
    """
    first = min(offset for offset in (column.dictionary_page_offset, column.data_page_offset) if offset)
    stored.seek(first)
    kind, size = _parse_page_header(stored.read(HEADER_BYTES))
    return size if kind == DICTIONARY_PAGE else 0


def _parse_page_header(content: bytes) -> tuple[int, int]:
    """Parse a parquet page header into the page's type and uncompressed bytes. Other content raises `ValueError`.

    Raises:
        ValueError: if the bytes are not a page header.
    """
    fields, at = [], 0
    for _ in range(2):
        if content[at : at + 1] != bytes([NEXT_I32]):
            raise ValueError("a page has no header")
        value, at = _decode_varint(content, at + 1)
        # Thrift writes integers in zigzag: 0, -1, 1, -2 as 0, 1, 2, 3.
        fields.append((value >> 1) ^ -(value & 1))

    return fields[0], fields[1]


def _decode_varint(content: bytes, at: int) -> tuple[int, int]:
    """Decode the variable-length integer at `at`, and return it with the next position. More than 5 bytes raise.

    A byte holds 7 bits of the integer.

    Raises:
        ValueError: if it does not end within 5 bytes.
    """
    value = 0
    for position, byte in enumerate(content[at : at + 5]):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value, at + position + 1
    raise ValueError("a page's header is cut off")


MAX_ROW_BYTES = 2**24
"""Maximum average bytes of a decompressed row in a parquet row group; the same as for a line."""


class TableRecords(Sequence[Record]):
    """Rows of an Arrow table as a sequence of dicts, which are built when the first row is accessed.

    Args:
        table: the rows, with the column types of the file.
        file: name of the file, for messages.
    """

    def __init__(self, table: Any, file: str) -> None:
        self.table, self.file = table, file

    @cached_property
    def _records(self) -> list[Record]:
        names = self.table.column_names
        rows = zip(*map(self.list_values, names), strict=True)
        return [dict(zip(names, values, strict=True)) for values in rows]

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def without(self, name: str) -> "TableRecords":
        """Return the rows without one column."""
        return TableRecords(self.table.drop_columns([name]), self.file)

    def list_values(self, name: str) -> list[Any]:
        """Convert the values of a column to Python objects.

        Times that Python cannot represent become ISO 8601 text: times with nanoseconds, with years beyond 9999, or in
        an unknown zone, which are given in UTC.

        Raises:
            SourceError: if the column is damaged.
        """
        try:
            return _list_values(self.table[name])
        except (_arrow_exception(), ValueError, OverflowError) as error:
            raise SourceError(f"{self.file}: the column {name!r} cannot be read: {error}") from error


def read_parquet(file: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Yield the rows of a span of a parquet file in batches of up to `rows`. A missing column or a null text raises.

    Batches hold the values of the column `field`, and the whole rows.

    Raises:
        AccessError: if pyarrow is not installed.
        SourceError: if the file is damaged, lacks the column, has a null among texts, or its rows take too much memory.
    """
    number = span.start + 1
    for table in _read_tables(file, field, rows, span):
        records = TableRecords(table, file.name)
        numbers = range(number, number + len(records))
        yield RawBatch(file.name, "row", numbers, records.list_values(field), records)
        number += len(records)


def _read_tables(file: Readable, field: str, rows: int, span: Span) -> Iterator[Any]:
    """Yield a span of a parquet file as Arrow tables of `rows` rows, the last may be shorter. Too large tables raise.

    A table that takes more than `MAX_BATCH_BYTES` raises.

    Raises:
        SourceError: if the file is damaged, lacks the column, or the rows of a table take too much memory.
    """
    from pyarrow import Table

    pending: list[Any] = []
    count = size = 0
    for part in _read_parts(file, field, rows, span):
        for taken in (part.slice(0, rows - count), part.slice(rows - count)):
            if not len(taken):
                continue

            pending.append(taken)
            count, size = count + len(taken), size + taken.nbytes
            if size > MAX_BATCH_BYTES:
                raise SourceError(f"{file.name}: {count:,} rows take {size:,} bytes, more than {MAX_BATCH_BYTES:,}")
            if count == rows:
                yield Table.from_batches(pending)
                pending, count, size = [], 0, 0

    if pending:
        yield Table.from_batches(pending)


def _read_parts(file: Readable, field: str, rows: int, span: Span) -> Iterator[Any]:
    """Yield a span of a parquet file as Arrow batches of up to `rows` rows. A missing column or a null text raises.

    Row groups that end before the span are not read. The index that pandas stores as a column is left out.

    Raises:
        SourceError: if the file is damaged or lacks the column.
    """
    with _open_parquet(file) as parquet, file.open("rb") as stored:
        _require_column(file, parquet, field)
        _refuse_null_texts(file, stored, parquet, field)
        # pandas stores the index of a table as a column, which is not a field of its rows.
        columns = [name for name in parquet.schema_arrow.names if not name.startswith("__index_level_")]
        row, stop = 0, span.stop
        for group in range(parquet.num_row_groups):
            size = parquet.metadata.row_group(group).num_rows
            # Row groups are skipped by their counts in the footer, without reading them.
            if row + size <= span.start:
                row += size
                continue

            try:
                batch_rows = _choose_batch_rows(file, stored, parquet, group, rows)
                for part in parquet.iter_batches(batch_rows, row_groups=[group], columns=columns):
                    if stop is not None and row >= stop:
                        return

                    yield part.slice(max(span.start - row, 0), None if stop is None else stop - max(row, span.start))
                    row += part.num_rows
            except (_arrow_exception(), OSError, ValueError, OverflowError) as error:
                raise SourceError(f"{file.name} cannot be read after row {row}: {error}") from error


def _list_values(column: Any) -> list[Any]:
    """Convert an Arrow column to Python objects. Times that Python cannot represent become ISO 8601 text."""
    import pyarrow
    from pyarrow import types

    kind = column.type
    if not types.is_temporal(kind):
        held = _replace_nanoseconds(kind)
        values: list[Any] = (column if held == kind else column.cast(held)).to_pylist()
        return values

    held = kind  # with nanoseconds, pyarrow would return objects of pandas, if it is installed
    if types.is_timestamp(kind):
        held = pyarrow.timestamp("us", kind.tz)
    elif types.is_time64(kind):
        held = pyarrow.time64("us")
    elif types.is_duration(kind):
        held = pyarrow.duration("us")
    try:
        return list(column.cast(held).to_pylist())
    except (pyarrow.ArrowException, ValueError, OverflowError, KeyError):
        zone = "Z" if types.is_timestamp(kind) and kind.tz is not None else ""
        plain = column.cast(pyarrow.timestamp(kind.unit)) if types.is_timestamp(kind) else column
        texts = plain.cast(pyarrow.string()).to_pylist()
        # Arrow formats times that it cannot represent either as "<value out of range: 1013609203200000000>".
        return [text if text is None or text[0] == "<" else text.replace(" ", "T", 1) + zone for text in texts]


def _replace_nanoseconds(kind: Any) -> Any:
    """Return an Arrow type in which the times in nanoseconds within lists, maps and structs are texts."""
    import pyarrow
    from pyarrow import types

    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_replace_nanoseconds(field.type)) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(_replace_nanoseconds(kind.key_type), _replace_nanoseconds(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind):
        return pyarrow.list_(_replace_nanoseconds(kind.value_type))
    return pyarrow.string() if types.is_temporal(kind) and getattr(kind, "unit", "") == "ns" else kind


def _choose_batch_rows(file: Readable, stored: IO[bytes], parquet: Any, group: int, rows: int) -> int:
    """Return how many rows of a parquet row group to decompress at once: `rows` or fewer, at least 1. Huge rows raise.

    Rows of more than `MAX_ROW_BYTES` on average raise. A row is assumed to be as large as the largest dictionary page
    of a column, which bounds a value that the rows repeat. As many rows are chosen as then fit in `MAX_BATCH_BYTES`, at
    least 1.

    Raises:
        SourceError: if the rows take more than `MAX_ROW_BYTES` each on average.
        ValueError: if the page headers are damaged.
    """
    metadata = parquet.metadata.row_group(group)
    if metadata.total_byte_size > MAX_ROW_BYTES * max(metadata.num_rows, 1):
        raise SourceError(
            f"{file.name}: {metadata.num_rows:,} rows take {metadata.total_byte_size:,} bytes decompressed; at most "
            f"{MAX_ROW_BYTES:,} bytes a row are read"
        )

    # An estimate from page headers alone, because decompressing could exhaust the memory.
    columns = (metadata.column(number) for number in range(metadata.num_columns))
    largest = max((_read_dictionary_size(stored, column) for column in columns if column.num_values), default=0)
    return max(1, min(rows, MAX_BATCH_BYTES // max(largest, 1)))


def _require_column(file: Readable, parquet: Any, field: str) -> None:
    """Raise `SourceError` if an open parquet file lacks the column `field`, or has several columns of the same name."""
    names = parquet.schema_arrow.names
    if field not in names:
        raise SourceError(f"{file.name} has no column {field!r}; it has {', '.join(names)}. Name one as FILE#COLUMN")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SourceError(f"{file.name} has {names.count(twice)} columns with the name {twice!r}: rename them")


def detect_parquet_kind(file: Readable, field: str) -> Kind:
    """Detect by the schema whether a parquet column holds texts (None) or lists of numbers (1). Other columns raise.

    The result is 1 for lists of any length. A file without rows raises.

    Raises:
        EmptyError: if the file has no rows.
        SourceError: if the file is damaged, or the column is missing or holds neither texts nor lists of numbers.
    """
    from pyarrow import types

    with _open_parquet(file) as parquet:
        _require_column(file, parquet, field)
        if not parquet.metadata.num_rows:
            raise EmptyError(f"{file.name} holds no rows")
        column_type = parquet.schema_arrow.field(field).type

    column_type = column_type.value_type if types.is_dictionary(column_type) else column_type
    if types.is_string(column_type) or types.is_large_string(column_type) or types.is_string_view(column_type):
        return None
    if types.is_list(column_type) or types.is_large_list(column_type) or types.is_fixed_size_list(column_type):
        item = column_type.value_type
        if types.is_integer(item) or types.is_floating(item) or types.is_null(item):
            return 1

    raise SourceError(f"{file.name}: the column {field!r} holds {column_type}, neither texts nor lists of numbers")


def _refuse_null_texts(file: Readable, stored: IO[bytes], parquet: Any, field: str) -> None:
    """Raise `SourceError` if a column of texts has a null, and name the row. The footer of the file tells the counts.

    Without this check, a job would end hours later at the first null. Columns of lists are not checked.
    """
    row = 1
    for group in range(parquet.num_row_groups):
        metadata = parquet.metadata.row_group(group)
        columns = (metadata.column(number) for number in range(metadata.num_columns))
        column = next((column for column in columns if column.path_in_schema == field), None)
        if column is None:  # a column of lists: its path names the items
            return
        if column.statistics is None or not column.statistics.null_count:
            row += metadata.num_rows
            continue

        batch_rows = _choose_batch_rows(file, stored, parquet, group, metadata.num_rows)
        for part in parquet.iter_batches(batch_rows, row_groups=[group], columns=[field]):
            if part.column(0).null_count:
                row += part.column(0).is_null().to_pylist().index(True)
                raise SourceError(f"{file.name} row {row}: null in the column {field!r}, which holds texts")
            row += len(part)


def _open_parquet(file: Readable) -> Any:
    """Open a parquet file with pyarrow. A damaged file, and a missing pyarrow, raise.

    Raises:
        AccessError: if pyarrow (extra `parquet`) is not installed.
        SourceError: if the file is damaged.
    """
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise AccessError("reading parquet needs pyarrow: pip install 'lathe-training[parquet]'") from error

    try:
        return ParquetFile(file if isinstance(file, Path) else file.open("rb"))
    except (_arrow_exception(), OSError) as error:
        raise SourceError(f"{file.name} is not a parquet file that can be read: {error}") from error


def _arrow_exception() -> type[Exception]:
    from pyarrow import ArrowException

    base: type[Exception] = ArrowException
    return base


def count_parquet(file: Readable, field: str) -> int:
    """Read the number of rows of a parquet file from its footer. `field` is ignored.

    Raises:
        AccessError: if pyarrow is not installed.
        SourceError: if the file is damaged.
    """
    with _open_parquet(file) as parquet:
        return int(parquet.metadata.num_rows)
