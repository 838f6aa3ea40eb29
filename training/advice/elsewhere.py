"""Does a chain fitted here serve other text: the same measures on held-out rows and on foreign text."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from training.advice.debiasing import GEOMETRY_ROWS, ranks_behind
from training.advice.halves import reciprocal_ranks
from training.advice.sample import Halves, Sample
from training.evaluation.statistics import Interval, mean_interval
from transforms.chain import Chain
from transforms.quality import geometry_measures
from transforms.vectors import FloatArray

HERE, FOREIGN = "held out", "foreign"


@dataclass(frozen=True)
class Elsewhere:
    """The recommended chain, fitted here, on some text; all texts are measured among as many rows.

    Attributes:
        text: whose.
        rows: of it.
        measures: as in a certificate, of the neighbours that the raw vectors have.
        retrieval: mean reciprocal rank of halves in the raw vectors; None where too few can be cut.
        gain: of that behind the chain, in points.
    """

    text: str
    rows: int
    measures: dict[str, float | None]
    retrieval: float | None
    gain: Interval | None

    @property
    def kept_of_halves(self) -> Interval | None:
        """The share of what halves of texts found in the raw vectors that they find behind the chain."""
        if self.gain is None or not self.retrieval:
            return None
        raw, gain = 100 * self.retrieval, self.gain
        low, high = (None if bound is None else 1 + bound / raw for bound in (gain.low, gain.high))
        return Interval(1 + gain.value / raw, low, high)

    @property
    def kept_of_neighbours(self) -> Interval | None:
        """The share of the ten nearest neighbours that is found again with rescoring, without an interval."""
        rescored = self.measures["recall_at_10_rescored_4x"]
        return None if rescored is None else Interval(rescored, None, None)


def elsewhere(sample: Sample, chain: Chain) -> Iterator[Elsewhere]:
    """A chain on held-out rows and on foreign text, among as many rows and halves of each."""
    foreign = sample.foreign
    rows = min(len(sample.heldout), GEOMETRY_ROWS, len(foreign.vectors) if foreign else GEOMETRY_ROWS)
    cut = [some.halves for some in (sample, foreign) if some is not None and some.halves is not None]
    halves = min((len(some) for some in cut), default=0)
    yield on_text(HERE, chain, sample.heldout[:rows], sample.halves, halves)
    if foreign is not None:
        yield on_text(FOREIGN, chain, foreign.vectors[:rows], foreign.halves, halves)


def on_text(name: str, chain: Chain, vectors: FloatArray, cut: Halves | None, halves: int) -> Elsewhere:
    """A fitted chain on some vectors, and on so many halves."""
    retrieval, gain = None, None
    if cut is not None:
        some = Halves(cut.first[:halves], cut.second[:halves])
        raw = reciprocal_ranks(some.first, some.second)
        retrieval, gain = float(raw.mean()), mean_interval(100 * (ranks_behind(chain, some) - raw))
    return Elsewhere(name, len(vectors), geometry_measures(vectors, np.asarray(chain.floats(vectors))), retrieval, gain)
