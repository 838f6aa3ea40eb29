"""Unvalidated rows of a file, the interface of readable files, and spans of rows."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from lathe.training.errors import SourceError
from lathe.transforms.vectors import FloatArray

T = TypeVar("T")

Record = dict[str, Any]
"""Whole row of a source, a dict from field names to values."""


def _iterate_scalars(value: Any) -> Iterator[Any]:
    """Yield the texts, numbers, booleans and nulls of a JSON value, which may be nested deeper than Python's calls."""
    pending = [value]
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind is list:
            pending.extend(value)
        elif kind is dict:
            pending.extend(value.values())
        else:
            yield value


def find_long_integer(value: Any) -> int | None:
    """Search a JSON value for an integer beyond 64 bits, which cannot be stored as it is. Return it, or None."""
    return next((x for x in _iterate_scalars(value) if type(x) is int and not -(2**63) <= x < 2**64), None)


def restore_long_integers(content: bytes, parsed: Any, searched: Any) -> Any:
    """Return parsed JSON with integers of any length.

    orjson, which reads all JSON here, rounds integers beyond 64 bits to floats, and does not say so.

    Args:
        content: the JSON text.
        parsed: what orjson made of it.
        searched: the part of it in which rounded integers matter. If it has no float of 2^64 or more, nothing is parsed
            again.
    """
    if all(type(x) is not float or -(2.0**64) < x < 2.0**64 for x in _iterate_scalars(searched)):
        return parsed
    try:
        return json.loads(content)
    except RecursionError:  # whoever stores it refuses it for its depth
        return parsed


class Readable(Protocol):
    """File that can be opened, local or remote."""

    @property
    def name(self) -> str:
        """File name without its folder."""

    @property
    def suffix(self) -> str:
        """File extension with the dot."""

    def open(self, mode: Any = ..., /) -> IO[Any]:
        """Open the file for reading bytes."""


@contextmanager
def native_path(file: Readable) -> Iterator[str]:
    """Yield a path under which libraries that only open paths can open the file. It is the file's own, or `/dev/fd/N`
    of a descriptor that is closed after the block.
    """
    if isinstance(file, Path):
        yield str(file)
        return
    with file.open("rb") as stored:
        yield f"/dev/fd/{stored.fileno()}"


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive rows of a file.

    Attributes:
        start: index of the first row.
        stop: index after the last row; None is the end of the file.
        byte: in a file of lines, the byte offset of the first row's line in the decompressed content, so that readers
            can skip what comes before.
        line: number of lines before the first row's line, blank ones included.
    """

    start: int = 0
    stop: int | None = None
    byte: int = 0
    line: int = 0

    @property
    def rows(self) -> int | None:
        """Number of rows, or None if `stop` is None."""
        return None if self.stop is None else self.stop - self.start


WHOLE = Span()
"""Span of all rows of a file."""

MAX_DIMENSIONS = 65_536
"""Maximum dimensions of a source's vectors. A file of a kilobyte can claim vectors of gigabytes each."""

MAX_BATCH_BYTES = 2**30
"""Maximum bytes that the rows of one batch may take once decompressed."""


def split_bounded_batches(
    sized: Iterator[tuple[T, float]], rows: int, refusal: Callable[[list[T]], str]
) -> Iterator[list[T]]:
    """Collect items into lists of `rows` items, the last perhaps shorter, and yield each list. An error is raised if
    the items of a list take too much memory.

    Args:
        sized: each item with the bytes that it takes once decompressed.
        rows: maximum items of a list.
        refusal: returns the error message, given the items of a list up to the one that exceeds the limit.

    Raises:
        SourceError: if the items of a list take more than `MAX_BATCH_BYTES`, as highly compressible rows can.
    """
    batch: list[T] = []
    size = 0.0
    for item, item_bytes in sized:
        batch.append(item)
        size += item_bytes
        if size > MAX_BATCH_BYTES:
            raise SourceError(refusal(batch))
        if len(batch) == rows:
            yield batch
            batch, size = [], 0.0

    if batch:
        yield batch


def require_dimensions(file: Readable, width: int) -> None:
    """Check that a file's vectors have at most `MAX_DIMENSIONS` dimensions.

    Raises:
        SourceError: if they have more.
    """
    if width > MAX_DIMENSIONS:
        raise SourceError(f"{file.name} holds vectors {width:,} wide; at most {MAX_DIMENSIONS:,} are read")


@dataclass(frozen=True)
class RawBatch:
    """Consecutive rows as read from a file, not yet validated to be of one kind.

    Attributes:
        file: name of the file.
        unit: 'line' or 'row', the unit of `numbers`.
        numbers: number of each row in the file, for messages.
        values: texts, lists or any other values; or vectors `(n, d)`.
        records: the whole rows as dicts, if the file has more fields than the one read; else empty.
    """

    file: str
    unit: str
    numbers: Sequence[int]
    values: list[Any] | FloatArray
    records: list[Record]

    def describe_row(self, index: int) -> str:
        """Return the file name, unit and number of the row at `index`, for messages, such as 'a.jsonl line 7'."""
        return f"{self.file} {self.unit} {self.numbers[index]}"
