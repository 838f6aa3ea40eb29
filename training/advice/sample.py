"""What the advice is measured on: vectors to fit on, vectors held out, their halves, foreign ones."""

from collections.abc import Sequence
from dataclasses import dataclass

from training.advice.draw import Drawn
from training.advice.halves import halves, scripts
from transforms.arrays import FloatArray

HELDOUT_SHARE = 0.2
HELDOUT_WANTED = 1000
"""Rows held out where half of the rows are as many: what is measured needs more of them than the fit of a direction."""
HELDOUT_MOST = 4000
SCRIPTS_FROM = 1000
"""Texts whose script is looked at."""


@dataclass(frozen=True)
class Halves:
    """Vectors of the two halves of texts, each `(n, d)`."""

    first: FloatArray
    second: FloatArray

    def __len__(self) -> int:
        """Texts."""
        return len(self.first)


@dataclass(frozen=True)
class Foreign:
    """Text that the source knows nothing of.

    Attributes:
        vectors: `(n, d)`.
        halves: of those texts that can be cut.
    """

    vectors: FloatArray
    halves: Halves | None


@dataclass(frozen=True)
class Sample:
    """Vectors of drawn rows.

    Attributes:
        drawn: the rows.
        fit: `(n, d)` to fit on.
        heldout: `(m, d)` to measure on.
        halves: of the held-out texts that can be cut; None for vectors, and where hardly any can.
        foreign: None for vectors of nobody's.
        scripts: shares of the texts by script.
    """

    drawn: Drawn
    fit: FloatArray
    heldout: FloatArray
    halves: Halves | None
    foreign: Foreign | None
    scripts: dict[str, float]

    @property
    def dimensions(self) -> int:
        """The width of the vectors."""
        return int(self.fit.shape[1])


def heldout_rows(rows: int) -> int:
    """How many of the rows are held out."""
    return min(max(int(HELDOUT_SHARE * rows), min(HELDOUT_WANTED, rows // 2)), HELDOUT_MOST)


def cut_all(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """First and second halves of the texts that can be cut."""
    pairs = [cut for text in texts if (cut := halves(text))]
    return [first for first, _ in pairs], [second for _, second in pairs]


def to_encode(drawn: Drawn) -> list[str]:
    """What a sample of texts needs vectors of: the texts, then the first and the second halves of those held out."""
    first, second = cut_all(drawn.texts[: heldout_rows(len(drawn))])
    return [*drawn.texts, *first, *second]


def text_sample(drawn: Drawn, foreign: Foreign | None, vectors: FloatArray) -> Sample:
    """Texts with the vectors of what `to_encode` gives.

    Drawn rows come in random order, so that the first are as good as any to hold out.
    """
    rows, aside = len(drawn), heldout_rows(len(drawn))
    cut = (len(vectors) - rows) // 2
    return Sample(
        drawn=drawn,
        fit=vectors[aside:rows],
        heldout=vectors[:aside],
        halves=Halves(vectors[rows : rows + cut], vectors[rows + cut :]) if cut else None,
        foreign=foreign,
        scripts=scripts(drawn.texts[:SCRIPTS_FROM]),
    )


def vector_sample(drawn: Drawn, vectors: FloatArray) -> Sample:
    """Vectors of nobody's: there is nothing to cut in two."""
    aside = heldout_rows(len(drawn))
    return Sample(drawn, vectors[aside:], vectors[:aside], None, None, {})
