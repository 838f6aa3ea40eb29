"""What the advice is measured on: vectors to fit on, vectors held out, their halves, foreign ones."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from training.advice.draw import Drawn
from training.advice.halves import halves, scripts
from transforms.vectors import FloatArray

VectorsOf = Callable[[Sequence[str]], FloatArray]
"""Texts to vectors `(n, d)`."""

HELDOUT_SHARE = 0.2
HELDOUT_WANTED = 1000
"""Rows held out where half of the rows are as many: what is measured needs more of them than the fit of a direction."""
HELDOUT_MOST = 4000
HALVES_LEAST = 30
"""Texts cut in two: of fewer no interval can be trusted."""
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
        cut: held-out texts that can be cut in two.
        halves: of these; None for vectors, and where they are too few.
        foreign: None for vectors of nobody's.
        scripts: shares of the texts by script.
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
        """The width of the vectors."""
        return int(self.fit.shape[1])


def heldout_rows(rows: int) -> int:
    """How many of the rows are held out."""
    return min(max(int(HELDOUT_SHARE * rows), min(HELDOUT_WANTED, rows // 2)), HELDOUT_MOST)


def cut_all(texts: Sequence[str]) -> list[tuple[str, str]]:
    """The halves of the texts that can be cut."""
    return [cut for text in texts if (cut := halves(text))]


def to_encode(drawn: Drawn) -> list[str]:
    """What a sample of texts needs vectors of: the texts, and the halves of those held out."""
    pairs = cut_all(drawn.texts[: heldout_rows(len(drawn))])
    return [*drawn.texts, *(half for pair in pairs for half in pair)]


def text_sample(
    drawn: Drawn, foreign: Foreign | None, vectors_of: VectorsOf, failed: Collection[str] = frozenset()
) -> Sample:
    """Texts as vectors.

    Drawn rows come in random order, so that the first are as good as any to hold out.

    Args:
        drawn: the texts.
        foreign: text from elsewhere.
        vectors_of: gives vectors of texts, and of halves.
        failed: what has none.
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
    """Vectors of nobody's: there is nothing to cut in two."""
    aside = heldout_rows(len(drawn))
    return Sample(drawn, vectors[aside:], vectors[:aside], 0, None, None, {})
