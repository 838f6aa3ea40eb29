"""What to advise on; it needs none of the libraries that the answer does."""

from dataclasses import dataclass

ROWS_MOST = 20_000
"""Rows that are looked at: enough to fit 1,024 dimensions."""
KEEP = 0.95
"""What a size must keep: of the ten nearest neighbours, found again with rescoring, and of the mean reciprocal rank
with which halves of texts find each other."""
ROWS_LIMIT = 1_000_000
"""Rows that may be asked for: they are held in memory."""


@dataclass(frozen=True)
class Question:
    """A source, and what an answer must hold to.

    Attributes:
        source: as `open_source` reads it.
        keep: share that a size must keep of the neighbours and of what halves of texts find.
        rows: that are looked at, at most.
        seed: of the draw.
    """

    source: str
    keep: float = KEEP
    rows: int = ROWS_MOST
    seed: int = 0
