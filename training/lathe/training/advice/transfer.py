"""Transfer evaluation: the same measures of a chain on held-out rows and on out-of-domain text."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lathe.training.advice.debiasing import GEOMETRY_ROWS, rank_halves
from lathe.training.advice.retained_share import compute_retained_share
from lathe.training.advice.sample import Sample, TextHalves
from lathe.training.evaluation.statistics import Interval, mean_interval
from lathe.training.split_half import reciprocal_ranks
from lathe.transforms.chain import Chain
from lathe.transforms.quality import geometry_measures
from lathe.transforms.vectors import FloatArray

HELD_OUT, OUT_OF_DOMAIN = "held out", "out of domain"


@dataclass(frozen=True)
class TransferResult:
    """Measures of the recommended chain on one set of rows.

    All sets are cut to the same number of rows.

    Attributes:
        text: `HELD_OUT` for held-out rows, `OUT_OF_DOMAIN` for out-of-domain text.
        rows: number of rows.
        measures: geometry measures as in a certificate, relative to the raw vectors; None where not measurable.
        retrieval: split-half mean reciprocal rank of the raw vectors; None if too few texts can be cut in two.
        gain: difference of 100·MRR that the chain makes, paired by text; None if `retrieval` is.
    """

    text: str
    rows: int
    measures: dict[str, float | None]
    retrieval: float | None
    gain: Interval | None

    @property
    def retained_retrieval(self) -> Interval | None:
        """Share of the raw vectors' split-half MRR that the chain retains, with an interval, or None if unmeasured."""
        if self.gain is None or not self.retrieval:
            return None
        return compute_retained_share(self.retrieval, self.gain)

    @property
    def retained_neighbours(self) -> Interval | None:
        """Recall@10 of the raw vectors' neighbours with 4× oversampling and rescoring, or None if not measured.
        It has no interval.
        """
        rescored = self.measures["recall_at_10_rescored_4x"]
        return None if rescored is None else Interval(rescored, None, None)


def evaluate_transfer(sample: Sample, chain: Chain) -> Iterator[TransferResult]:
    """Measure a fitted chain on held-out rows and, if the sample has it, on out-of-domain text.
    Yield one result for each of the two.

    Both results use the same number of rows, at most `GEOMETRY_ROWS`, and of text halves, so that they are comparable.
    """
    out_of_domain = sample.out_of_domain
    # Recall falls with the number of rows, so both sets are cut to the same number.
    rows = min(len(sample.heldout), GEOMETRY_ROWS, len(out_of_domain.vectors) if out_of_domain else GEOMETRY_ROWS)
    cut = [part.halves for part in (sample, out_of_domain) if part is not None and part.halves is not None]
    halves = min((len(part) for part in cut), default=0)
    yield _measure_transfer(HELD_OUT, chain, sample.heldout[:rows], sample.halves, halves)

    if out_of_domain is not None:
        yield _measure_transfer(OUT_OF_DOMAIN, chain, out_of_domain.vectors[:rows], out_of_domain.halves, halves)


def _measure_transfer(
    name: str, chain: Chain, vectors: FloatArray, cut: TextHalves | None, halves: int
) -> TransferResult:
    """Measure how well a fitted chain preserves the neighbours of vectors `(n, d)`.
    The result also has the split-half MRR of the raw vectors, and the chain's gain in it.

    Args:
        name: value of `TransferResult.text`.
        chain: fitted chain.
        vectors: raw vectors `(n, d)`.
        cut: raw vectors of text halves; None leaves `retrieval` and `gain` None.
        halves: number of texts whose halves are used.
    """
    retrieval, gain = None, None
    if cut is not None:
        used_halves = TextHalves(cut.first[:halves], cut.second[:halves])
        raw = reciprocal_ranks(used_halves.first, used_halves.second)
        retrieval, gain = float(raw.mean()), mean_interval(100 * (rank_halves(chain, used_halves) - raw))

    return TransferResult(
        name, len(vectors), geometry_measures(vectors, np.asarray(chain.floats(vectors))), retrieval, gain
    )
