"""Rows as a file has them, and which of its rows are meant."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from training.errors import SourceError
from transforms.vectors import FloatArray

Record = dict[str, Any]


class Readable(Protocol):
    """A file, here or elsewhere."""

    @property
    def name(self) -> str:
        """Without its folder."""

    @property
    def suffix(self) -> str:
        """The last part of its name, with the dot."""

    def open(self, mode: Any = ..., /) -> IO[Any]:
        """Its bytes."""


@contextmanager
def native_path(file: Readable) -> Iterator[str]:
    """Give a path by which a library opens the file that takes nothing else."""
    if isinstance(file, Path):
        yield str(file)
        return
    with file.open("rb") as stored:
        yield f"/dev/fd/{stored.fileno()}"


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive rows of a file.

    Attributes:
        start: the first row.
        stop: the row after the last; None is the file's end.
        byte: where the first row's line begins in a file of lines, unpacked: what comes before need not be read.
        line: lines before it, blank ones too.
    """

    start: int = 0
    stop: int | None = None
    byte: int = 0
    line: int = 0

    @property
    def rows(self) -> int | None:
        """How many; None where that is not known."""
        return None if self.stop is None else self.stop - self.start


WHOLE = Span()

WIDTH_MOST = 65_536
"""Numbers in a vector of a source: the file of wider ones can be a kilobyte, and each of them gigabytes."""

BATCH_BYTES_MOST = 2**30
"""What the rows of a batch may take, as their file has them, unpacked."""


def require_width(file: Readable, width: int) -> None:
    """Raise `SourceError` for a file of vectors that are too wide."""
    if width > WIDTH_MOST:
        raise SourceError(f"{file.name} holds vectors {width:,} wide; at most {WIDTH_MOST:,} are read")


@dataclass(frozen=True)
class RawBatch:
    """Consecutive rows as a file has them, not yet checked to be of one kind.

    Attributes:
        file: the name.
        unit: what its rows are counted as.
        numbers: of the rows, in that unit.
        values: texts, lists or whatever else; or vectors `(n, d)`.
        records: the whole rows, where there is more than the one field; else empty.
    """

    file: str
    unit: str
    numbers: Sequence[int]
    values: list[Any] | FloatArray
    records: list[Record]

    def place(self, index: int) -> str:
        """File and number of a row, for an error."""
        return f"{self.file} {self.unit} {self.numbers[index]}"
