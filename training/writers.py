"""Rows with vectors, written a batch at a time to a file that appears when it is whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from training.errors import SourceError
from training.sources import Record

FIELD = "embedding"


class Writer(Protocol):
    """Takes batches of rows."""

    def write(self, records: list[Record], vectors: NDArray[np.float32]) -> None:
        """Add rows: what else they have, and their vectors `(n, d)`."""

    def close(self) -> None:
        """Finish the file."""


@contextmanager
def open_writer(path: Path) -> Iterator[Writer]:
    """A writer for a .jsonl, .parquet or .npy file; on an error nothing is left in its place.

    Raises:
        SourceError: for another suffix, or parquet without pyarrow.
    """
    if path.suffix not in WRITERS:
        raise SourceError(f"{path.name} must end in {', '.join(WRITERS)}")
    staging = path.with_name(f".{path.name}.partial")
    writer: Writer = WRITERS[path.suffix](staging)
    try:
        yield writer
        writer.close()
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)


class JsonLinesWriter:
    """A JSON object a line: the row's fields and `embedding`."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")

    def write(self, records: list[Record], vectors: NDArray[np.float32]) -> None:
        """Add rows."""
        for record, vector in zip(records, vectors, strict=True):
            line = orjson.dumps(record | {FIELD: vector}, option=orjson.OPT_SERIALIZE_NUMPY, default=str)
            self.file.write(line + b"\n")

    def close(self) -> None:
        """Finish the file."""
        self.file.close()


class NpyWriter:
    """Vectors alone, float32 `(n, d)`; the header is written again once n is known."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")
        self.shape = (0, 0)

    def write(self, records: list[Record], vectors: NDArray[np.float32]) -> None:
        """Add rows."""
        if self.shape[0] == 0:
            self.write_header(vectors.shape[1])
        self.shape = (self.shape[0] + len(vectors), vectors.shape[1])
        self.file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())

    def write_header(self, width: int) -> None:
        """NumPy leaves room in the header for the first axis to grow."""
        header = {"descr": "<f4", "fortran_order": False, "shape": (self.shape[0], width)}
        np.lib.format.write_array_header_1_0(self.file, header)

    def close(self) -> None:
        """Finish the file."""
        self.file.seek(0)
        self.write_header(self.shape[1])
        self.file.close()


class ParquetWriter:
    """The row's columns and a column `embedding` of float32 lists."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise SourceError("writing parquet needs pyarrow: pip install 'lathe[parquet]'") from error
        self.arrow = pyarrow
        self.path = path
        self.file: Any = None

    def write(self, records: list[Record], vectors: NDArray[np.float32]) -> None:
        """Add rows."""
        flat = self.arrow.array(np.ascontiguousarray(vectors).reshape(-1))
        columns = {name: self.arrow.array([record[name] for record in records]) for name in records[0]}
        columns[FIELD] = self.arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        table = self.arrow.table(columns)
        if self.file is None:
            self.file = self.arrow.parquet.ParquetWriter(self.path, table.schema)
        self.file.write_table(table)

    def close(self) -> None:
        """Finish the file."""
        if self.file is not None:
            self.file.close()


WRITERS: dict[str, type[Any]] = {".jsonl": JsonLinesWriter, ".parquet": ParquetWriter, ".npy": NpyWriter}
