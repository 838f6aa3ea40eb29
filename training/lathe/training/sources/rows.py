"""Batches of rows of a file, as read (`RawBatch`) and after validation (`RowBatch`), and the interface of files.

The kind of rows is None for texts, and the number of dimensions for vectors.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import orjson

from lathe.training.errors import SourceError
from lathe.transforms.vectors import FloatArray

Record = dict[str, Any]
"""Whole row of a source, a dict of field names and values."""


def _iterate_scalars(value: Any) -> Iterator[Any]:
    """Yield the texts, numbers, booleans and nulls of a JSON value, at any depth and without recursion."""
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
    """Find an integer in a JSON value, at any depth, that does not fit into 64 bits. None if there is none."""
    return next((x for x in _iterate_scalars(value) if type(x) is int and not -(2**63) <= x < 2**64), None)


def restore_long_integers(content: bytes, parsed: Any, searched: Any) -> Any:
    """Return parsed JSON with the exact values of integers beyond 64 bits, or the parsed JSON if there are none.

    orjson rounds such integers to floats. JSON that is nested too deeply for Python's parser is returned unchanged.

    Args:
        content: the JSON text.
        parsed: the value that orjson parsed.
        searched: part of `parsed` in which rounded integers matter. If it has no float of 2^64 or more, `content` is
            not parsed again.
    """
    if all(type(x) is not float or -(2.0**64) < x < 2.0**64 for x in _iterate_scalars(searched)):
        return parsed
    try:
        return json.loads(content)
    except RecursionError:  # it is refused later, where it is stored
        return parsed


class Readable(Protocol):
    """Interface of a file that can be opened, local or remote."""

    @property
    def name(self) -> str:
        """File name without its folder."""

    @property
    def suffix(self) -> str:
        """File extension with the dot."""

    def open(self, mode: Any = ..., /) -> IO[Any]:
        """Open the file, and return a stream of its bytes."""


@contextmanager
def open_native_path(file: Readable) -> Iterator[str]:
    """Yield a path of the file for libraries that only open paths: the `Path` itself, or `/dev/fd/N` in the block.

    N is a descriptor that is closed after the block.
    """
    if isinstance(file, Path):
        yield str(file)
        return
    with file.open("rb") as stored:
        yield f"/dev/fd/{stored.fileno()}"


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive rows of a file, by index.

    Attributes:
        start: index of the first row.
        stop: index after the last row; None is the end of the file.
        byte: in a file of lines, the byte offset of the first row's line in the decompressed content, so that readers
            can skip the lines before.
        line: number of lines before the first row's line, including blank lines.
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


def check_dimensions(file: Readable, dimensions: int) -> None:
    """Raise `SourceError` if a file's vectors have more than `MAX_DIMENSIONS` dimensions."""
    if dimensions > MAX_DIMENSIONS:
        raise SourceError(f"{file.name} has vectors of {dimensions:,} dimensions; at most {MAX_DIMENSIONS:,} are read")


@dataclass(frozen=True)
class RawBatch:
    """Consecutive rows as read from a file, not yet validated to be of one kind.

    Attributes:
        file: name of the file.
        unit: 'line' or 'row', the unit of `numbers`.
        numbers: number of each row in the file, from 1 on, for messages.
        values: texts, lists or any other values; or vectors `(n, d)`.
        records: the whole rows, if the file has more fields than the one that is read; else empty.
    """

    file: str
    unit: str
    numbers: Sequence[int]
    values: list[Any] | FloatArray
    records: Sequence[Record]

    def describe_row(self, index: int) -> str:
        """Return the file name, unit and number of the row at `index`, for messages, such as 'a.jsonl line 7'."""
        return f"{self.file} {self.unit} {self.numbers[index]}"


MIN_WRITTEN_NUMBERS = 16
"""Minimum length of a list of numbers, written as text, that is recognized as a vector."""

Kind = int | None
"""Kind of a source's rows: None for texts, the number of dimensions for vectors, 0 for anything else."""


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows of a source that are all of one kind.

    Attributes:
        values: the texts, or the vectors `(n, d)`.
        records: the whole rows as dicts, if the source has more fields than the one that is read; else empty.
    """

    values: list[str] | FloatArray
    records: Sequence[Record]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.values)


def detect_batch_kind(raw: RawBatch) -> Kind:
    """Detect the kind of a batch by its first row: None for texts, the number of dimensions for vectors, else 0."""
    if isinstance(raw.values, np.ndarray):
        return int(raw.values.shape[1])
    first = raw.values[0]
    if isinstance(first, str):
        return None
    return len(first) if isinstance(first, list) else 0


def validate_rows(raw: RawBatch, kind: Kind, require_finite: bool = True) -> RowBatch:
    """Validate that all rows of a batch are of the given kind and finite, and return them with vectors as float32.

    Args:
        raw: rows as read from a file.
        kind: None for texts, or the number of dimensions of vectors.
        require_finite: whether NaN and inf are errors.

    Raises:
        SourceError: for the first row of another kind, for a text that is a written-out vector, and with
            `require_finite` for a row that holds NaN, inf or a number beyond float32.
    """
    if isinstance(raw.values, np.ndarray):
        if raw.values.shape[1] != kind:
            found = format_kind(int(raw.values.shape[1]))
            raise SourceError(f"{raw.file}: {found} in a source that began with {format_kind(kind)}")
        return RowBatch(_convert_rows(raw, raw.values, require_finite), raw.records)

    if kind is None:
        for index, value in enumerate(raw.values):
            if not isinstance(value, str):
                raise SourceError(
                    f"{raw.describe_row(index)}: {_describe_value(value)} in a source that began with texts"
                )
            if count := count_written_numbers(value):
                raise SourceError(f"{raw.describe_row(index)}: {explain_written_vector(count)}")
        return RowBatch(raw.values, raw.records)

    return RowBatch(_convert_rows(raw, _as_matrix(raw, kind), require_finite), raw.records)


def count_written_numbers(text: str) -> int:
    """Count the numbers in a text that is a vector written out, as pgvector or pandas write it. Otherwise return 0.

    A list with fewer than `MIN_WRITTEN_NUMBERS` numbers counts as text, such as a line of code.
    """
    # Cheap tests first, because every text of a source is tested.
    if not (text.startswith("[") and text.endswith("]")) or text.count(",") < MIN_WRITTEN_NUMBERS - 1:
        return 0

    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError:
        return 0

    numbers = isinstance(content, list) and all(isinstance(x, int | float) and not isinstance(x, bool) for x in content)
    return len(content) if numbers else 0


def explain_written_vector(count: int) -> str:
    """Return the message that a text is refused because it is a vector of `count` numbers written out."""
    return f"a text that is a list of {count} numbers: write vectors as lists of numbers, not as text"


def _as_matrix(raw: RawBatch, dimensions: int) -> FloatArray:
    """Convert the rows of a batch, lists of numbers, to a float64 matrix `(n, dimensions)`. Any other row raises.

    Raises:
        SourceError: for the first row that is not a list of `dimensions` numbers.
    """
    for index, value in enumerate(raw.values):
        if dimensions == 0 or (isinstance(value, list) and value and isinstance(value[0], str)):
            raise SourceError(f"{raw.describe_row(index)}: {_describe_value(value)}, neither a text nor a vector")
        if not isinstance(value, list) or len(value) != dimensions:
            found, expected = _describe_value(value), format_kind(dimensions)
            raise SourceError(f"{raw.describe_row(index)}: {found} in a source that began with {expected}")
        for position, number in enumerate(value):
            if not isinstance(number, int | float) or isinstance(number, bool):
                found = "null" if number is None else f"{number!r:.40}"
                raise SourceError(
                    f"{raw.describe_row(index)}: the vector holds {found} at {position}, which is not a number"
                )

    return np.array(raw.values, dtype=np.float64)


def _convert_rows(raw: RawBatch, vectors: FloatArray, require_finite: bool) -> FloatArray:
    """Convert the vectors of a batch to float32. With `require_finite`, NaN, inf or a number beyond float32 raises.

    Raises:
        SourceError: with `require_finite`, for the first row that holds NaN, inf, or a number beyond float32.
    """
    # A float64 beyond float32 becomes inf here, which the check then finds.
    with np.errstate(over="ignore"):
        rows = vectors.astype(np.float32)
    finite = np.isfinite(rows).all(axis=1)
    if require_finite and not finite.all():
        raise SourceError(f"{raw.describe_row(int(finite.argmin()))}: NaN, inf, or a number beyond float32")
    return rows


def format_kind(kind: Kind) -> str:
    """Return the name of a kind of rows for messages, such as 'texts' or 'vectors of 384 dimensions'."""
    if kind is None:
        return "texts"
    return f"vectors of {kind} dimensions" if kind else "neither texts nor vectors"


def _describe_value(value: object) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}{' texts' if value and isinstance(value[0], str) else ''}"
    return {str: "a text", type(None): "null"}.get(type(value), f"{value!r:.40}")
