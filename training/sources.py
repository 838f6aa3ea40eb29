"""Where texts and vectors come from, read in batches so that no source has to fit in memory."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import orjson

from training.docstrings import docstring_paragraphs, topic_paragraphs
from training.errors import SourceError
from transforms.arrays import FloatArray, require_finite
from transforms.errors import InputError

BATCH_ROWS = 1024
SUFFIXES = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz", ".parquet", ".npy")
BUILT_IN: dict[str, Callable[[], list[str]]] = {"pydoc:": docstring_paragraphs, "pydoc:topics": topic_paragraphs}

Record = dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """Some consecutive rows of a source.

    Attributes:
        values: their texts, or their vectors `(n, d)`.
        records: the whole rows, where the source has more than the one field; else empty.
    """

    values: list[str] | FloatArray
    records: list[Record]

    def __len__(self) -> int:
        """Rows."""
        return len(self.values)


@dataclass(frozen=True)
class Source:
    """Texts or vectors, by what a user wrote.

    `file.jsonl[.gz]` (field `text`, or `#field`), `file.txt[.gz]` (a text a line),
    `file.parquet#column`, `file.npy` (vectors), a folder of these, `pydoc:` (docstrings of the
    Python installation) and `pydoc:topics` (its language reference). A field that holds lists of
    numbers makes it a source of vectors.
    """

    written: str
    field: str
    files: tuple[Path, ...]

    @property
    def name(self) -> str:
        """How provenance calls it: no folder of the machine it was read on."""
        return self.written if self.written in BUILT_IN else Path(self.written.partition("#")[0]).name

    def batches(self, rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """All rows in order, a folder's files in the order of their names.

        Raises:
            SourceError: for what cannot be read, with file and row; for texts mixed with vectors;
                for vectors that are not finite or not of one width.
        """
        kind: tuple[str, int] | None = None
        for place, batch in self.placed_batches(rows):
            found = ("texts", 0) if isinstance(batch.values, list) else ("vectors", batch.values.shape[1])
            if kind not in (None, found):
                raise SourceError(f"{place}: {describe_kind(found)} in a source that began with {describe_kind(kind)}")
            kind = found
            yield batch

    def placed_batches(self, rows: int) -> Iterator[tuple[str, Batch]]:
        """Batches with the name of the file they are from."""
        if self.written in BUILT_IN:
            texts = BUILT_IN[self.written]()
            for start in range(0, len(texts), rows):
                yield self.written, Batch(texts[start : start + rows], [])
        for path in self.files:
            for batch in READERS[file_format(path)](path, self.field, rows):
                yield path.name, batch

    def kind(self) -> Literal["texts", "vectors"]:
        """What it holds, by its first row.

        Raises:
            SourceError: if it holds nothing.
        """
        first = next(self.batches(rows=1), None)
        if first is None:
            raise SourceError(f"the source {self.written!r} is empty")
        return "texts" if isinstance(first.values, list) else "vectors"

    def count(self) -> int:
        """Rows in all; for text files one quick pass."""
        if self.written in BUILT_IN:
            return len(BUILT_IN[self.written]())
        return sum(COUNTERS[file_format(path)](path) for path in self.files)


def open_source(written: str) -> Source:
    """The source a user names; nothing is read yet.

    Raises:
        SourceError: if there is no such file, or no format is known for it.
    """
    if written in BUILT_IN:
        return Source(written, "", ())
    place, _, field = written.partition("#")
    path = Path(place).expanduser()
    if path.is_dir():
        files = tuple(sorted(f for f in path.rglob("*") if f.is_file() and file_format(f) and not hidden(f, path)))
        if not files:
            raise SourceError(f"the folder {place} holds none of {', '.join(SUFFIXES)}")
    elif not path.is_file():
        builtin = " and ".join(BUILT_IN)
        raise SourceError(f"there is no file or folder {place!r}; built in are {builtin}")
    elif not file_format(path):
        raise SourceError(f"{place} is none of {', '.join(SUFFIXES)}")
    else:
        files = (path,)
    return Source(written, field or "text", files)


def hidden(path: Path, root: Path) -> bool:
    """Whether any part of the path below the root starts with a dot."""
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def file_format(path: Path) -> str:
    """The format a file's name ends with; empty if unknown."""
    name = path.name.removesuffix(".gz")
    return next((suffix for suffix in (".jsonl", ".txt", ".parquet", ".npy") if name.endswith(suffix)), "")


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, unpacking gzip."""
    return io.BufferedReader(gzip.GzipFile(path)) if path.suffix == ".gz" else path.open("rb")


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers.

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


def read_jsonl(path: Path, field: str, rows: int) -> Iterator[Batch]:
    """Records with a text, or a list of numbers, in one field."""
    values: list[Any] = []
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
        values.append(record[field])
        records.append(record)
        if len(values) == rows:
            yield batch_of(values, records, path)
            values, records = [], []
    if values:
        yield batch_of(values, records, path)


def read_text(path: Path, field: str, rows: int) -> Iterator[Batch]:
    """A text a line; blank lines are left out."""
    values: list[str] = []
    for number, line in numbered_lines(path):
        try:
            values.append(line.decode())
        except UnicodeDecodeError as error:
            raise SourceError(f"{path.name} line {number}: not UTF-8: {error}") from error
        if len(values) == rows:
            yield Batch(values, [])
            values = []
    if values:
        yield Batch(values, [])


def read_parquet(path: Path, field: str, rows: int) -> Iterator[Batch]:
    """Rows with a text, or a list of numbers, in one column."""
    with open_parquet(path) as file:
        if field not in file.schema_arrow.names:
            columns = ", ".join(file.schema_arrow.names)
            raise SourceError(f"{path.name} has no column {field!r}; it has {columns}. Name one as FILE#COLUMN")
        for part in file.iter_batches(batch_size=rows):
            records = part.to_pylist()
            yield batch_of([record[field] for record in records], records, path)


def open_parquet(path: Path) -> Any:
    """A parquet file, by the extra `parquet`.

    Raises:
        SourceError: if the extra is not installed or the file is damaged.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise SourceError("reading parquet needs pyarrow: pip install 'lathe[parquet]'") from error
    try:
        return ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise SourceError(f"{path.name} is not a parquet file that can be read: {error}") from error


def read_npy(path: Path, field: str, rows: int) -> Iterator[Batch]:
    """Vectors `(n, d)` of any float dtype, through a memmap."""
    vectors = open_npy(path)
    for start in range(0, vectors.shape[0], rows):
        block = np.array(vectors[start : start + rows], dtype=np.float32)
        check_finite(block, start, path)
        yield Batch(block, [])


def open_npy(path: Path) -> FloatArray:
    """A memmap of a .npy file.

    Raises:
        SourceError: if it is damaged or holds something other than rows of floats.
    """
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise SourceError(f"{path.name} is not a .npy file that can be read: {error}") from error
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or vectors.shape[1] == 0:
        raise SourceError(f"{path.name} must hold floats of the shape (n, d), not {vectors.dtype} {vectors.shape}")
    return vectors  # type: ignore[no-any-return]


def batch_of(values: list[Any], records: list[Record], path: Path) -> Batch:
    """A batch of texts or of vectors, whichever the values are.

    Raises:
        SourceError: if they are neither, or mixed, or the vectors differ in width.
    """
    if all(isinstance(value, str) for value in values):
        return Batch(values, records)
    try:
        vectors = np.array(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise SourceError(f"{path.name}: rows are neither all texts nor all vectors of one width") from error
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise SourceError(f"{path.name}: vectors must be lists of numbers of one width")
    check_finite(vectors, 0, path)
    return Batch(vectors, records)


def check_finite(block: FloatArray, first_row: int, path: Path) -> None:
    """Raise `SourceError` naming the first row that holds NaN or inf."""
    try:
        require_finite(block, first_row)
    except InputError as error:
        raise SourceError(f"{path.name}: {error}") from error


def describe_kind(kind: tuple[str, int] | None) -> str:
    """`texts`, or vectors with their width."""
    return "texts" if kind is None or kind[0] == "texts" else f"vectors {kind[1]} wide"


def count_lines(path: Path) -> int:
    """Lines that are not blank."""
    return sum(1 for _ in numbered_lines(path))


def count_parquet(path: Path) -> int:
    """Rows, from the file's footer."""
    with open_parquet(path) as file:
        return int(file.metadata.num_rows)


READERS: dict[str, Callable[[Path, str, int], Iterator[Batch]]] = {
    ".jsonl": read_jsonl,
    ".txt": read_text,
    ".parquet": read_parquet,
    ".npy": read_npy,
}
COUNTERS: dict[str, Callable[[Path], int]] = {
    ".jsonl": count_lines,
    ".txt": count_lines,
    ".parquet": count_parquet,
    ".npy": lambda path: int(open_npy(path).shape[0]),
}
