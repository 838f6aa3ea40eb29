"""Writers of rows with vectors, batch by batch, to a file that appears under its final name when it is complete."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from lathe.training.errors import SourceError
from lathe.training.sources.parquet import TableRecords
from lathe.training.sources.rows import Record

FIELD = "embedding"
"""Name of the field or column of the vectors."""


class Writer(Protocol):
    """Interface of an open output file to which batches of rows with vectors are appended."""

    def write(self, records: Sequence[Record], vectors: NDArray[Any]) -> None:
        """Append rows: their other fields in `records`, and their vectors `(n, d)` of floats or byte codes."""

    def close(self) -> None:
        """Finish the file and close it."""


def get_staging_path(path: Path) -> Path:
    """Return the path of the hidden file that rows are written to before the file gets its final name.

    A killed run leaves the hidden file.
    """
    return path.with_name(f".{path.name}.partial")


@contextmanager
def open_writer(path: Path) -> Iterator[Writer]:
    """Yield a writer of a .jsonl, .parquet or .npy file, which appears if the block succeeds. Another suffix raises.

    The file appears under its name only if the block succeeds: the rows go to a hidden file in the same folder, which
    is renamed at the end. If the block raises, the hidden file is deleted.

    Raises:
        SourceError: for another suffix, or parquet without pyarrow.
    """
    if path.suffix not in WRITERS:
        raise SourceError(f"{path.name} must end in {', '.join(WRITERS)}")

    staging = get_staging_path(path)
    staging.touch()  # raises now if the folder cannot be written to, before any row is computed
    writer: Writer = WRITERS[path.suffix](staging)
    try:
        try:
            yield writer
        finally:
            writer.close()
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)


class _JsonLinesWriter:
    """Writer of JSON Lines: one object per row, with the row's fields and its vector as `embedding`."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")

    def write(self, records: Sequence[Record], vectors: NDArray[Any]) -> None:
        """Append one JSON line for each row. Values that JSON lacks are written as strings."""
        for record, vector in zip(records, np.ascontiguousarray(vectors), strict=True):
            line = orjson.dumps(record | {FIELD: vector}, option=orjson.OPT_SERIALIZE_NUMPY, default=str)
            self.file.write(line + b"\n")

    def close(self) -> None:
        self.file.close()


class _NpyWriter:
    """Writer of a .npy file of vectors `(n, d)` in their dtype, without other fields.

    Closing writes n to the header.
    """

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")
        self.rows = 0
        self.dimensions = 0
        self.dtype = np.dtype("<f4")

    def write(self, records: Sequence[Record], vectors: NDArray[Any]) -> None:
        """Append vectors `(n, d)`. The first call also writes a header for their dtype. The records are ignored."""
        if self.dimensions == 0:
            self.dimensions, self.dtype = vectors.shape[1], vectors.dtype.newbyteorder("<")
            self._write_header()
        self.rows += len(vectors)
        self.file.write(np.ascontiguousarray(vectors, dtype=self.dtype).tobytes())

    def _write_header(self) -> None:
        """Write the header for the number of rows so far, at the current position of the file.

        NumPy pads the header, so its length stays the same when the number grows.
        """
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.rows, self.dimensions)}
        np.lib.format.write_array_header_1_0(self.file, header)

    def close(self) -> None:
        """Write the final number of rows into the header, and close the file."""
        self.file.seek(0)
        self._write_header()
        self.file.close()


class ParquetWriter:
    """Writer of a parquet file with the rows' columns and a column `embedding` of lists of numbers.

    Rows of an Arrow table keep their column types. The types of other rows are inferred batch by batch. If a later
    batch needs another type, such as numbers after nulls or longer decimals, the rows written so far are converted.
    """

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise SourceError("writing parquet needs pyarrow: pip install 'lathe-training[parquet]'") from error

        self.arrow = pyarrow
        self.path = path
        self.file: Any = None

    def write(self, records: Sequence[Record], vectors: NDArray[Any]) -> None:
        """Append rows as a table, with the records' fields as columns and null where missing. Mixed types raise.

        Nothing is done if `records` is empty.

        Raises:
            SourceError: for a column whose values mix types, or have a type that parquet does not support.
        """
        if not len(records):
            return

        if isinstance(records, TableRecords):
            table = records.table.replace_schema_metadata(None)  # pandas stores the columns of its index there
            self._append_table(table.drop_columns([FIELD]) if FIELD in table.column_names else table, vectors)
            return

        names = dict.fromkeys(name for record in records for name in record if name != FIELD)
        self._append_table(self.arrow.table({name: self._build_column(name, records) for name in names}), vectors)

    def _append_table(self, table: Any, vectors: NDArray[Any]) -> None:
        """Write columns and vectors `(n, d)` as one table. New types convert the file first. Incompatible types raise.

        If the columns need other types than the file has, the file is converted first.

        Raises:
            SourceError: if parquet does not support the type of a column, or no type holds all values of a column.
        """
        flat = self.arrow.array(np.ascontiguousarray(vectors).reshape(-1))
        embeddings = self.arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        # A table without columns has no rows either.
        table = table.append_column(FIELD, embeddings) if table.num_columns else self.arrow.table({FIELD: embeddings})
        schema = table.schema if self.file is None else self._merge_schemas(self.file.schema, table.schema)

        if self.file is None:
            self.file = self._open_file(self.path, schema)
        elif schema != self.file.schema:
            self._convert_file(schema)
        self.file.write_table(_conform(table, schema))

    def _open_file(self, path: Path, schema: Any) -> Any:
        try:
            return self.arrow.parquet.ParquetWriter(path, schema)
        except self.arrow.ArrowException as error:
            raise SourceError(f"parquet cannot hold these columns: {error}; write .jsonl instead") from error

    def _merge_schemas(self, written: Any, added: Any) -> Any:
        """Merge two schemas: the columns of both, with types that hold the values of both. Incompatible types raise.

        Raises:
            SourceError: if no type holds the values of a column in both.
        """
        unsigned = self.arrow.uint64()
        for name in set(written.names) & set(added.names):
            kinds = {written.field(name).type, added.field(name).type}
            # Arrow would merge these to int64, which cannot hold numbers from 2^63 on.
            if kinds == {unsigned, self.arrow.int64()}:
                written, added = (
                    s.set(s.get_field_index(name), s.field(name).with_type(unsigned)) for s in (written, added)
                )
        try:
            return self.arrow.unify_schemas([written, added], promote_options="permissive")
        except self.arrow.ArrowException as error:
            raise SourceError(f"a column has different types in two batches: {error}; write .jsonl instead") from error

    def _convert_file(self, schema: Any) -> None:
        """Rewrite the file with another schema. Further rows are appended after the converted rows."""
        self.file.close()
        before = self.path.with_name(f"{self.path.name}.before")
        self.path.replace(before)
        try:
            self.file = self._open_file(self.path, schema)
            with self.arrow.parquet.ParquetFile(before) as written:
                for group in range(written.num_row_groups):
                    self.file.write_table(_conform(written.read_row_group(group), schema))
        finally:
            before.unlink()

    def _build_column(self, name: str, records: Sequence[Record]) -> Any:
        """Build the Arrow array of a field of the records. A missing value is null, and mixed types raise.

        Raises:
            SourceError: if the values mix types.
        """
        values = [record.get(name) for record in records]
        try:
            try:
                return self.arrow.array(values)
            except OverflowError:
                return self.arrow.array(values, self.arrow.uint64())
        except (self.arrow.ArrowException, TypeError, OverflowError) as error:
            raise SourceError(f"the column {name} mixes types: {error}; write .jsonl instead") from error

    def close(self) -> None:
        """Close the file. Without rows, the file gets an empty table with only the column `embedding`."""
        if self.file is None:
            self._append_table(self.arrow.table({}), np.empty((0, 1), np.float32))
        self.file.close()


def _conform(table: Any, schema: Any) -> Any:
    """Convert a table to a schema, with null for a missing column. A value that cannot be converted raises.

    Raises:
        SourceError: if a value of a column cannot be converted to the new type.
    """
    import pyarrow

    columns = []
    for field in schema:
        column = table[field.name] if field.name in table.column_names else pyarrow.nulls(len(table), field.type)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pyarrow.ArrowException as error:
            raise SourceError(f"the column {field.name}: {error}; write .jsonl instead") from error
    return pyarrow.table(columns, schema=schema)


WRITERS: dict[str, type[Any]] = {".jsonl": _JsonLinesWriter, ".parquet": ParquetWriter, ".npy": _NpyWriter}
"""Writer classes by file suffix."""
