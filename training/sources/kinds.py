"""Whether rows are texts or vectors, and that all of a source are the same."""

from dataclasses import dataclass

import numpy as np

from training.errors import SourceError
from training.sources.raw import RawBatch, Record
from transforms.vectors import FloatArray

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
