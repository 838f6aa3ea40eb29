"""Where texts and vectors come from, read in batches so that no source has to fit in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from training.docstrings import docstring_paragraphs, topic_paragraphs
from training.errors import SourceError
from training.raw import RawBatch, Record
from training.readers import FORMATS, count_rows, file_format, read_rows
from transforms.arrays import FloatArray

BATCH_ROWS = 1024
BUILT_IN = {"pydoc:": docstring_paragraphs, "pydoc:topics": topic_paragraphs}

Kind = int | None
"""What a source holds: None is texts, a number vectors of that width."""


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
    `file.parquet#column`, `file.npy` (vectors), `file.hdf5[#dataset]` as ann-benchmarks writes them,
    `file.faiss` (a flat index), a folder of these, `pydoc:` (docstrings of the
    Python installation) and `pydoc:topics` (its language reference). A field that holds lists of
    numbers makes it a source of vectors.
    """

    written: str
    field: str
    files: tuple[Path, ...]

    @property
    def name(self) -> str:
        """How provenance calls it: no folder of the machine it was read on."""
        if self.written in BUILT_IN:
            return self.written
        return Path(self.written.partition("#")[0]).expanduser().resolve().name

    def batches(self, rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """All rows in order, a folder's files in the order of their names.

        Raises:
            SourceError: for what cannot be read, with file and row; for texts mixed with vectors;
                for vectors that are not finite or not of one width.
        """
        kind: Kind = None
        begun = False
        for raw in self.raw_batches(rows):
            if not begun:
                kind, begun = kind_of(raw), True
            yield checked(raw, kind)

    def raw_batches(self, rows: int) -> Iterator[RawBatch]:
        """Rows as they are read."""
        if self.written in BUILT_IN:
            texts = BUILT_IN[self.written]()
            for start in range(0, len(texts), rows):
                part = texts[start : start + rows]
                yield RawBatch(self.written, "row", range(start, start + len(part)), part, [])
        for path in self.files:
            yield from read_rows(path, self.field, rows)

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
        return sum(count_rows(path, self.field) for path in self.files)


def open_source(written: str) -> Source:
    """The source a user names; nothing is read yet.

    Raises:
        SourceError: if there is no such file, or no format is known for it.
    """
    if written in BUILT_IN:
        return Source(written, "", ())
    place, _, field = written.partition("#")
    missing = SourceError(f"there is no file or folder {place!r}; built in are {' and '.join(BUILT_IN)}")
    try:
        path = Path(place).expanduser()
        path.stat()
    except (OSError, ValueError, RuntimeError):  # missing, no name at all, the home of a user there is not
        raise missing from None
    if not place:
        raise missing
    if path.is_dir():
        files = tuple(sorted(f for f in path.rglob("*") if f.is_file() and file_format(f) and not hidden(f, path)))
        if not files:
            raise SourceError(f"the folder {place} holds none of {', '.join(FORMATS)}")
    elif not path.is_file():
        raise missing
    elif not file_format(path):
        raise SourceError(f"{place} is none of {', '.join(FORMATS)}")
    else:
        files = (path,)
    return Source(written, field or "text", files)


def hidden(path: Path, root: Path) -> bool:
    """Whether any part of the path below the root starts with a dot."""
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def kind_of(raw: RawBatch) -> Kind:
    """What a source holds that begins with these rows."""
    if isinstance(raw.values, np.ndarray):
        return int(raw.values.shape[1])
    first = raw.values[0]
    return None if isinstance(first, str) else len(first) if isinstance(first, list) else 0


def checked(raw: RawBatch, kind: Kind) -> Batch:
    """Rows that are all of one kind.

    Raises:
        SourceError: naming the first row that is not, or is not finite.
    """
    if isinstance(raw.values, np.ndarray):
        if raw.values.shape[1] != kind:
            width = raw.values.shape[1]
            raise SourceError(f"{raw.file}: vectors {width} wide in a source that began with {in_words(kind)}")
        return Batch(require_finite_rows(raw, raw.values), raw.records)
    if kind is None:
        for index, value in enumerate(raw.values):
            if not isinstance(value, str):
                raise SourceError(f"{raw.place(index)}: {in_words_of(value)} in a source that began with texts")
        return Batch(raw.values, raw.records)
    return Batch(require_finite_rows(raw, as_matrix(raw, kind)), raw.records)


def as_matrix(raw: RawBatch, width: int) -> FloatArray:
    """Lists of numbers as vectors `(n, width)`.

    Raises:
        SourceError: naming the first row that is something else.
    """
    for index, value in enumerate(raw.values):
        fits = isinstance(value, list) and len(value) == width > 0
        if not fits or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in value):
            found = in_words_of(value)
            raise SourceError(f"{raw.place(index)}: {found} in a source that began with {in_words(width)}")
    return np.array(raw.values, dtype=np.float64)


def require_finite_rows(raw: RawBatch, vectors: FloatArray) -> FloatArray:
    """The vectors in float32.

    Raises:
        SourceError: naming the first row that holds NaN, inf, or a number beyond float32.
    """
    with np.errstate(over="ignore"):
        rows = vectors.astype(np.float32)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise SourceError(f"{raw.place(int(finite.argmin()))}: NaN, inf, or a number beyond float32")
    return rows


def in_words(kind: Kind) -> str:
    """`texts`, or vectors with their width."""
    return "texts" if kind is None else f"vectors {kind} wide" if kind else "neither texts nor vectors"


def in_words_of(value: object) -> str:
    """What a single row is."""
    if isinstance(value, str):
        return "a text"
    return f"a list of {len(value)}" if isinstance(value, list) else "neither a text nor a list of numbers"
