"""Detection of whether rows are texts or vectors, and validation that all rows of a source are of one kind."""

from dataclasses import dataclass

import numpy as np
import orjson

from lathe.training.errors import SourceError
from lathe.training.sources.raw import RawBatch, Record
from lathe.transforms.vectors import FloatArray

MIN_WRITTEN_NUMBERS = 16
"""Minimum numbers of a list in a text for the text to be taken for a vector."""

Kind = int | None
"""Kind of a source's rows: None for texts, or the number of dimensions for vectors; 0 for anything else."""


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows of a source that are all of one kind.

    Attributes:
        values: the texts, or the vectors `(n, d)`.
        records: the whole rows as dicts, if the source has more fields than the one read; else empty.
    """

    values: list[str] | FloatArray
    records: list[Record]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.values)


def detect_batch_kind(raw: RawBatch) -> Kind:
    """Return whether a batch holds texts or vectors, by its first row. The kind is None for texts, d for vectors or
    lists of d numbers, and 0 for anything else.
    """
    if isinstance(raw.values, np.ndarray):
        return int(raw.values.shape[1])
    first = raw.values[0]
    if isinstance(first, str):
        return None
    return len(first) if isinstance(first, list) else 0


def validate_rows(raw: RawBatch, kind: Kind) -> RowBatch:
    """Check that all rows of a batch are of the given kind and finite. Returns them as a `RowBatch`, with vectors as
    float32.

    Args:
        raw: rows as read from a file.
        kind: None for texts, or the number of dimensions of vectors.

    Raises:
        SourceError: for a row of another kind, or one that holds NaN, inf or a number beyond float32; names the first
            one.
    """
    if isinstance(raw.values, np.ndarray):
        if raw.values.shape[1] != kind:
            width = raw.values.shape[1]
            raise SourceError(f"{raw.file}: vectors {width} wide in a source that began with {kind_name(kind)}")
        return RowBatch(_require_finite_rows(raw, raw.values), raw.records)

    if kind is None:
        for index, value in enumerate(raw.values):
            if not isinstance(value, str):
                raise SourceError(
                    f"{raw.describe_row(index)}: {_describe_value(value)} in a source that began with texts"
                )
            if count := count_written_numbers(value):
                raise SourceError(f"{raw.describe_row(index)}: {explain_written_vector(count)}")
        return RowBatch(raw.values, raw.records)

    return RowBatch(_require_finite_rows(raw, _as_matrix(raw, kind)), raw.records)


def count_written_numbers(text: str) -> int:
    """Return how many numbers a text holds if it is a vector written out, as by pgvector or pandas. The count is 0 for
    other texts.

    A list of fewer than `MIN_WRITTEN_NUMBERS` is taken for a text, such as a line of code.
    """
    # Cheap tests first: every text of a source is looked at.
    if not (text.startswith("[") and text.endswith("]")) or text.count(",") < MIN_WRITTEN_NUMBERS - 1:
        return 0

    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError:
        return 0

    numbers = isinstance(content, list) and all(isinstance(x, int | float) and not isinstance(x, bool) for x in content)
    return len(content) if numbers else 0


def explain_written_vector(count: int) -> str:
    """Return why a text that is a vector written out is refused."""
    return f"a text that is a list of {count} numbers: a vector is given as a list, not as its text"


def _as_matrix(raw: RawBatch, width: int) -> FloatArray:
    """Convert the rows of a batch, which are lists of numbers, to a matrix `(n, width)` in float64.

    Raises:
        SourceError: if a row is not a list of `width` numbers; names the first one.
    """
    for index, value in enumerate(raw.values):
        if not isinstance(value, list) or len(value) != width or width == 0:
            raise SourceError(
                f"{raw.describe_row(index)}: {_describe_value(value)} in a source that began with {kind_name(width)}"
            )
        for position, number in enumerate(value):
            if not isinstance(number, int | float) or isinstance(number, bool):
                found = "null" if number is None else f"{number!r:.40}"
                raise SourceError(
                    f"{raw.describe_row(index)}: the vector holds {found} at {position}, which is no number"
                )

    return np.array(raw.values, dtype=np.float64)


def _require_finite_rows(raw: RawBatch, vectors: FloatArray) -> FloatArray:
    """Check that all vectors of a batch are finite in float32, and return them as float32.

    Raises:
        SourceError: naming the first row that holds NaN, inf, or a number beyond float32.
    """
    with np.errstate(over="ignore"):
        rows = vectors.astype(np.float32)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise SourceError(f"{raw.describe_row(int(finite.argmin()))}: NaN, inf, or a number beyond float32")
    return rows


def kind_name(kind: Kind) -> str:
    """Return the name of a kind for messages, such as 'texts' or 'vectors 384 wide'."""
    if kind is None:
        return "texts"
    return f"vectors {kind} wide" if kind else "neither texts nor vectors"


def _describe_value(value: object) -> str:
    if isinstance(value, str):
        return "a text"
    return f"a list of {len(value)}" if isinstance(value, list) else "neither a text nor a list of numbers"
