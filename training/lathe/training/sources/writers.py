"""Writers of rows with vectors, batch by batch, to a file that appears under its name once it is complete."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from lathe.training.errors import SourceError
from lathe.training.sources.rows import Record

FIELD = "embedding"
"""Name of the field or column of the vectors."""


class Writer(Protocol):
    """Interface of an open output file to which batches of rows with vectors are appended."""

    def write(self, records: list[Record], vectors: NDArray[Any]) -> None:
        """Append rows: their other fields in `records`, and their vectors `(n, d)` of floats or byte codes."""

    def close(self) -> None:
        """Finish the file and close it."""


@contextmanager
def open_writer(path: Path) -> Iterator[Writer]:
    """Open a .jsonl, .parquet or .npy file, and yield a writer of batches of rows with vectors. The file appears under
    its name only if the block succeeds.

    The rows go to a hidden file beside it, which is renamed at the end, and deleted if the block raises.

    Raises:
        SourceError: for another suffix, or parquet without pyarrow.
    """
    if path.suffix not in WRITERS:
        raise SourceError(f"{path.name} must end in {', '.join(WRITERS)}")

    staging = path.with_name(f".{path.name}.partial")
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

    def write(self, records: list[Record], vectors: NDArray[Any]) -> None:
        """Append one JSON line for each row: its record with the vector added. Values that JSON lacks are written as
        strings.
        """
        for record, vector in zip(records, np.ascontiguousarray(vectors), strict=True):
            line = orjson.dumps(record | {FIELD: vector}, option=orjson.OPT_SERIALIZE_NUMPY, default=str)
            self.file.write(line + b"\n")

    def close(self) -> None:
        self.file.close()


class _NpyWriter:
    """Writer of a .npy file of the vectors alone, `(n, d)` in their own dtype. Closing writes n into the header."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")
        self.rows = 0
        self.width = 0
        self.dtype = np.dtype("<f4")

    def write(self, records: list[Record], vectors: NDArray[Any]) -> None:
        """Append vectors `(n, d)` to the file. The records are ignored. The first call writes a header for the vectors'
        dtype.
        """
        if self.width == 0:
            self.width, self.dtype = vectors.shape[1], vectors.dtype.newbyteorder("<")
            self._write_header()
        self.rows += len(vectors)
        self.file.write(np.ascontiguousarray(vectors, dtype=self.dtype).tobytes())

    def _write_header(self) -> None:
        """Write the header for the rows so far at the current position. NumPy pads it, so its length stays the same."""
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.rows, self.width)}
        np.lib.format.write_array_header_1_0(self.file, header)

    def close(self) -> None:
        """Write the final number of rows into the header, and close the file."""
        self.file.seek(0)
        self._write_header()
        self.file.close()


class ParquetWriter:
    """Writer of a parquet file with the rows' columns, typed by the first batch, and a column `embedding` of lists of
    numbers.
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
        self.types: dict[str, Any] = {}

    def write(self, records: list[Record], vectors: NDArray[Any]) -> None:
        """Append rows as a table, with the records' fields as columns and missing values as null. Nothing is done if
        `records` is empty.

        Raises:
            SourceError: for a column that is new, or of another type than in the first batch.
        """
        if not records:
            return

        names = list(dict.fromkeys(name for record in records for name in record if name != FIELD))
        if self.file is not None and (new := set(names) - set(self.types)):
            raise SourceError(
                f"the columns {', '.join(sorted(new))} are missing in the first rows; write .jsonl instead"
            )

        columns = {name: self._build_column(name, records) for name in self.types or names}
        # The first batch decides the types: a parquet file has one schema.
        self.types = {name: column.type for name, column in columns.items()}
        self._append_table(columns, vectors)

    def _append_table(self, columns: dict[str, Any], vectors: NDArray[Any]) -> None:
        """Write columns and vectors `(n, d)` to the file as one table. The first call opens the file with their schema.

        Raises:
            SourceError: if parquet has no type for a column.
        """
        flat = self.arrow.array(np.ascontiguousarray(vectors).reshape(-1))
        embeddings = self.arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        table = self.arrow.table(columns | {FIELD: embeddings})

        if self.file is None:
            try:
                self.file = self.arrow.parquet.ParquetWriter(self.path, table.schema)
            except self.arrow.ArrowException as error:
                raise SourceError(f"parquet cannot hold these columns: {error}; write .jsonl instead") from error

        self.file.write_table(table)

    def _build_column(self, name: str, records: list[Record]) -> Any:
        """Return one field of the records as an Arrow array, in the type that the first batch had. It is null where a
        record lacks the field.

        Raises:
            SourceError: if the values mix types, their type differs from that of the first batch, or the type of the
                first batch cannot hold one of them.
        """
        values = [record.get(name) for record in records]
        column_type = self.types.get(name)
        try:
            column = self.arrow.array(values)
        except (self.arrow.ArrowException, TypeError, OverflowError) as error:
            raise SourceError(f"the column {name} mixes types: {error}; write .jsonl instead") from error

        if column_type is None or column.type == column_type:
            return column

        kinds = self.arrow.types
        if not (kinds.is_null(column.type) or (kinds.is_integer(column.type) and kinds.is_floating(column_type))):
            raise SourceError(f"the column {name} was {column_type} and becomes {column.type}; write .jsonl instead")

        try:
            return column.cast(column_type)
        except self.arrow.ArrowException as error:
            raise SourceError(f"the column {name}: {error}; write .jsonl instead") from error

    def close(self) -> None:
        """Close the file. If no rows were written, the file gets an empty table with only a column `embedding`."""
        if self.file is None:
            self._append_table({}, np.empty((0, 1), np.float32))
        self.file.close()


WRITERS: dict[str, type[Any]] = {".jsonl": _JsonLinesWriter, ".parquet": ParquetWriter, ".npy": _NpyWriter}
"""Writer classes by file suffix."""
