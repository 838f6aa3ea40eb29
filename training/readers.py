"""Reading rows from files, each format by its own function."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson

from training.errors import SourceError
from training.raw import RawBatch, Record
from training.stores import count_faiss, count_hdf5, read_faiss, read_hdf5
from transforms.arrays import FloatArray


def file_format(path: Path) -> str:
    """The format that a file's name ends with; empty if unknown."""
    return next((ending for ending in FORMATS if path.name.endswith(ending)), "")


def read_rows(path: Path, field: str, rows: int) -> Iterator[RawBatch]:
    """A file's rows, at most so many at a time.

    Raises:
        SourceError: if it is damaged or lacks the field, with file and row.
    """
    return FORMATS[file_format(path)][0](path, field, rows)


def count_rows(path: Path, field: str) -> int:
    """How many rows a file has."""
    return FORMATS[file_format(path)][1](path, field)


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1.

    Raises:
        SourceError: if the file cannot be read or unpacked.
    """
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(file, 1):
                if stripped := line.strip():
                    yield number, stripped
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path.name} cannot be read: {error}") from error


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, unpacking gzip."""
    return io.BufferedReader(gzip.GzipFile(path)) if path.suffix == ".gz" else path.open("rb")


def read_jsonl(path: Path, field: str, rows: int) -> Iterator[RawBatch]:
    """Objects with the field."""
    numbers: list[int] = []
    records: list[Record] = []
    for number, line in numbered_lines(path):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise SourceError(f"{path.name} line {number}: not JSON: {error}") from error
        if not isinstance(record, dict) or field not in record:
            has = f"it has {', '.join(record)}" if isinstance(record, dict) else "it is not an object"
            raise SourceError(f"{path.name} line {number}: no field {field!r}; {has}. Name one as FILE#FIELD")
        if not isinstance(record[field], str | list):
            raise SourceError(f"{path.name} line {number}: {field!r} is neither a text nor a list of numbers")
        numbers.append(number)
        records.append(record)
        if len(records) == rows:
            yield RawBatch(path.name, "line", numbers, [record[field] for record in records], records)
            numbers, records = [], []
    if records:
        yield RawBatch(path.name, "line", numbers, [record[field] for record in records], records)


def read_text(path: Path, field: str, rows: int) -> Iterator[RawBatch]:
    """A text a line; blank lines are left out."""
    numbers: list[int] = []
    values: list[Any] = []
    for number, line in numbered_lines(path):
        try:
            values.append(line.decode())
        except UnicodeDecodeError as error:
            raise SourceError(f"{path.name} line {number}: not UTF-8: {error}") from error
        numbers.append(number)
        if len(values) == rows:
            yield RawBatch(path.name, "line", numbers, values, [])
            numbers, values = [], []
    if values:
        yield RawBatch(path.name, "line", numbers, values, [])


def count_lines(path: Path, field: str) -> int:
    """Lines that are not blank."""
    return sum(1 for _ in numbered_lines(path))


def read_parquet(path: Path, field: str, rows: int) -> Iterator[RawBatch]:
    """Rows with the column."""
    with open_parquet(path) as file:
        if field not in file.schema_arrow.names:
            columns = ", ".join(file.schema_arrow.names)
            raise SourceError(f"{path.name} has no column {field!r}; it has {columns}. Name one as FILE#COLUMN")
        start = 0
        parts = file.iter_batches(batch_size=rows)
        while True:
            try:
                part = next(parts, None)
                records = part.to_pylist() if part is not None else []
            except (arrow_exception(), OSError, ValueError, OverflowError) as error:
                raise SourceError(f"{path.name} cannot be read after row {start}: {error}") from error
            if part is None:
                return
            numbers = range(start, start + len(records))
            yield RawBatch(path.name, "row", numbers, [record[field] for record in records], records)
            start += len(records)


def open_parquet(path: Path) -> Any:
    """A parquet file, by the extra `parquet`.

    Raises:
        SourceError: if the extra is not installed or the file is damaged.
    """
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise SourceError("reading parquet needs pyarrow: pip install 'lathe[parquet]'") from error
    try:
        return ParquetFile(path)
    except (arrow_exception(), OSError) as error:
        raise SourceError(f"{path.name} is not a parquet file that can be read: {error}") from error


def arrow_exception() -> type[Exception]:
    """The root of pyarrow's errors."""
    from pyarrow import ArrowException

    found: type[Exception] = ArrowException
    return found


def count_parquet(path: Path, field: str) -> int:
    """Rows, from the file's footer."""
    with open_parquet(path) as file:
        return int(file.metadata.num_rows)


def read_npy(path: Path, field: str, rows: int) -> Iterator[RawBatch]:
    """Vectors `(n, d)` of any float dtype, through a memmap."""
    vectors = open_npy(path)
    for start in range(0, vectors.shape[0], rows):
        block = np.array(vectors[start : start + rows])
        yield RawBatch(path.name, "row", range(start, start + len(block)), block, [])


def open_npy(path: Path) -> FloatArray:
    """A memmap of a .npy file.

    Raises:
        SourceError: if it is damaged or holds something other than rows of floats.
    """
    try:
        vectors = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy parses the header as Python source, with that parser's errors
        raise SourceError(f"{path.name} is not a .npy file that can be read: {error!r}") from error
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or vectors.shape[1] == 0:
        raise SourceError(f"{path.name} must hold floats of the shape (n, d), not {vectors.dtype} {vectors.shape}")
    return vectors


def count_npy(path: Path, field: str) -> int:
    """Rows, from the file's header."""
    return int(open_npy(path).shape[0])


Reader = Callable[[Path, str, int], Iterator[RawBatch]]
FORMATS: dict[str, tuple[Reader, Callable[[Path, str], int]]] = {
    ".jsonl": (read_jsonl, count_lines),
    ".jsonl.gz": (read_jsonl, count_lines),
    ".txt": (read_text, count_lines),
    ".txt.gz": (read_text, count_lines),
    ".parquet": (read_parquet, count_parquet),
    ".npy": (read_npy, count_npy),
    ".hdf5": (read_hdf5, count_hdf5),
    ".faiss": (read_faiss, count_faiss),
}
"""By the end of the file's name: how it is read, how its rows are counted."""
