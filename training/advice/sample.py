"""Vectors that the advice is measured on: rows to fit on, held-out rows, their text halves, and out-of-domain text."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from training.advice.row_sample import Drawn
from training.advice.split_half import halves, scripts
from transforms.vectors import FloatArray

VectorsOf = Callable[[Sequence[str]], FloatArray]
"""Function of n texts that returns their vectors `(n, d)`."""

HELDOUT_SHARE = 0.2
"""Share of the rows that are held out in a large sample."""
HELDOUT_WANTED = 1000
"""Number of held-out rows up to which half of a small sample is held out, since measuring needs more rows than fitting
one direction."""
HELDOUT_MOST = 4000
"""Maximum number of held-out rows."""
HALVES_LEAST = 30
"""Minimum number of texts cut in two; with fewer, the interval of a gain is unreliable."""
SCRIPTS_FROM = 1000
"""Number of texts whose script is determined."""


@dataclass(frozen=True)
class Halves:
    """Vectors of the first and of the second halves of n texts, each `(n, d)`, row i from text i."""

    first: FloatArray
    second: FloatArray

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.first)


@dataclass(frozen=True)
class Foreign:
    """Vectors of out-of-domain text.

    Attributes:
        vectors: vectors of the texts, `(n, d)`.
        halves: vectors of the halves of those texts that can be cut in two; None if they are too few.
    """

    vectors: FloatArray
    halves: Halves | None


@dataclass(frozen=True)
class Sample:
    """Vectors of the sampled rows, split into rows to fit on and held-out rows.

    Attributes:
        drawn: the sampled rows.
        fit: vectors to fit on, `(n, d)`.
        heldout: vectors to measure on, `(m, d)`.
        cut: number of held-out texts that can be cut in two.
        halves: vectors of the halves of these texts; None for a source of vectors, or with fewer than `HALVES_LEAST`.
        foreign: vectors of out-of-domain text; None without an encoder.
        scripts: share of the texts in each script, largest first; empty for a source of vectors.
    """

    drawn: Drawn
    fit: FloatArray
    heldout: FloatArray
    cut: int
    halves: Halves | None
    foreign: Foreign | None
    scripts: dict[str, float]

    @property
    def dimensions(self) -> int:
        """Number of dimensions of the vectors."""
        return int(self.fit.shape[1])


def heldout_rows(rows: int) -> int:
    """Return how many of `rows` sampled rows are held out: a fifth, but half of few rows; at most `HELDOUT_MOST`."""
    return min(max(int(HELDOUT_SHARE * rows), min(HELDOUT_WANTED, rows // 2)), HELDOUT_MOST)


def cut_all(texts: Sequence[str]) -> list[tuple[str, str]]:
    """List the halves of those texts that are long enough to be cut in two."""
    return [cut for text in texts if (cut := halves(text))]


def to_encode(drawn: Drawn) -> list[str]:
    """List the texts that `text_sample` needs vectors of: all sampled texts, then the halves of the held-out ones."""
    pairs = cut_all(drawn.texts[: heldout_rows(len(drawn))])
    return [*drawn.texts, *(half for pair in pairs for half in pair)]


def text_sample(
    drawn: Drawn, foreign: Foreign | None, vectors_of: VectorsOf, failed: Collection[str] = frozenset()
) -> Sample:
    """Split sampled texts into held-out ones and ones to fit on, look up all vectors, and return the sample.

    The first texts are held out, because sampled rows are in random order.

    Args:
        drawn: sampled texts.
        foreign: vectors of out-of-domain text, or None.
        vectors_of: returns the vectors of texts and of halves.
        failed: texts and halves without a vector; they are left out.
    """
    aside = heldout_rows(len(drawn))
    heldout, fit = (
        [text for text in some if text not in failed] for some in (drawn.texts[:aside], drawn.texts[aside:])
    )
    pairs = [pair for pair in cut_all(heldout) if pair[0] not in failed and pair[1] not in failed]
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    return Sample(
        drawn=replace(drawn, texts=[*heldout, *fit]),
        fit=vectors_of(fit),
        heldout=vectors_of(heldout),
        cut=len(pairs),
        halves=Halves(vectors_of(first), vectors_of(second)) if len(pairs) >= HALVES_LEAST else None,
        foreign=foreign,
        scripts=scripts(drawn.texts[:SCRIPTS_FROM]),
    )


def vector_sample(drawn: Drawn, vectors: FloatArray) -> Sample:
    """Split sampled vectors `(n, d)` into held-out rows and rows to fit on; return the sample."""
    aside = heldout_rows(len(drawn))
    return Sample(drawn, vectors[aside:], vectors[:aside], 0, None, None, {})
