"""Statistics of hard-negative mining: counts, reasons for rejection, ranks, margins, examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.finetuning.candidates import Candidates
from lathe.training.finetuning.extras import NegativeSettings
from lathe.training.finetuning.mining import BLOCK_SCORES, AuxiliaryEncoder, MiningResult

EXAMPLES = 5
"""Maximum number of example queries of a source."""
SHOWN_CHARACTERS = 200
"""Maximum number of characters of a text in an example."""
BIN = 0.05
"""Bin width of the histogram of margins, which are differences of cosines."""
SAMPLED_RANGE = 10
"""Number of documents that the library examines for each negative if no range is given and a score or margin limit
is set."""


@dataclass(frozen=True)
class MiningStatistics:
    """Statistics of the negatives mined for one source.

    Attributes:
        queries: number of distinct queries.
        documents: number of distinct documents searched.
        asked: number of negatives that the settings ask for per query.
        kept: number of negatives of all queries together.
        short: share of queries with fewer negatives than asked for.
        without: share of queries without any negative.
        dropped: number of documents near a query that were rejected as negatives, by reason.
        margin: quantiles of score(positive) − score(negative), at 5 %, 25 %, 50 %, 75 % and 95 %; empty without any.
        histogram: number of margins by the lower bound of their bin.
        ranks: median, 95 % quantile and maximum of the negatives' ranks among documents that are not known answers;
            empty without any.
        examples: queries with their positives and negatives, each with its score.
    """

    queries: int
    documents: int
    asked: int
    kept: int
    short: float
    without: float
    dropped: dict[str, int]
    margin: list[float]
    histogram: dict[str, int]
    ranks: list[int]
    examples: list[dict[str, Any]]


def compute_statistics(
    candidates: Candidates,
    auxiliary: AuxiliaryEncoder,
    settings: NegativeSettings,
    count: int,
    mined: Sequence[MiningResult],
) -> MiningStatistics:
    """Compute the statistics of a source's mined negatives.
    They count negatives and rejected documents by reason, and describe margins (positive's score minus negative's) and
    ranks.

    Args:
        candidates: queries, documents and known answers.
        auxiliary: adapter with the vectors of all queries and documents.
        settings: ranges, scores and margins of the mining.
        count: number of negatives that were to be mined for each query; limits the documents counted as rejected.
        mined: result of each query.
    """
    tally = _Tally(candidates, settings, count)
    documents = auxiliary.encode_document(list(candidates.documents.values()))
    # Scores (b, m) of a block of queries with all documents, at most BLOCK_SCORES at a time.
    step = max(1, BLOCK_SCORES // max(1, len(documents)))

    for start in range(0, len(mined), step):
        batch = mined[start : start + step]
        scores = auxiliary.encode_query([result.query for result in batch]) @ documents.T
        for result, row in zip(batch, scores, strict=True):
            tally.add(result, row)

    margins = np.array(
        [p - n for result in mined for p in result.positives.values() for n in result.negatives.values()]
    )
    counts = np.array([len(result.negatives) for result in mined])
    return MiningStatistics(
        queries=len(mined),
        documents=len(candidates.documents),
        asked=settings.num_negatives,
        kept=int(counts.sum()),
        short=float((counts < settings.num_negatives).mean()),
        without=float((counts == 0).mean()),
        dropped={"text of the target's test": candidates.forbidden} | tally.dropped,
        margin=np.quantile(margins, [0.05, 0.25, 0.5, 0.75, 0.95]).round(4).tolist() if len(margins) else [],
        histogram=_count_margins(margins),
        ranks=[int(rank) for rank in np.quantile(tally.ranks, [0.5, 0.95, 1])] if tally.ranks else [],
        examples=[_build_example(result) for result in mined if result.negatives][:EXAMPLES],
    )


class _Tally:
    """Counts of why documents near a query are not its negatives, and the ranks of its negatives.

    The reasons are reconstructed from the scores, since the library does not report them.

    Args:
        candidates: queries, documents and known answers.
        settings: ranges, scores and margins of the mining.
        count: number of negatives that were to be mined for each query.

    Attributes:
        examined: number of nearest documents that the library examines for each query.
        ranks: rank of each negative among documents that are not known answers, from 1.
        dropped: number of rejected documents by reason.
    """

    def __init__(self, candidates: Candidates, settings: NegativeSettings, count: int) -> None:
        self.candidates, self.settings = candidates, settings
        self.positions = {text: position for position, text in enumerate(candidates.documents.values())}
        positives = max(map(len, candidates.answers.values()), default=0)
        limited = [settings.absolute_margin, settings.relative_margin, settings.max_score] != [None] * 3
        examined = count * SAMPLED_RANGE if limited else count
        self.examined = (settings.range_max or settings.range_min + examined + positives) + positives
        self.ranks: list[int] = []
        self.dropped = {"known to answer the query": 0, "within the margin": 0, "above max_score": 0}
        self.dropped |= {"before range_min": 0, "not needed": 0}

    def add(self, result: MiningResult, scores: NDArray[Any]) -> None:
        """Add one query to the counts.
        Each of the documents nearest to it that is no negative is counted in `dropped` by reason, and the ranks of its
        negatives are added to `ranks`.

        Args:
            result: mining result of the query.
            scores: cosine of the query with every document, `(m,)`.
        """
        # known, near and above are masks (m,) over documents; a document counts for the first reason that applies.
        known = np.zeros(len(scores), bool)
        known[[self.positions[text] for text in result.positives]] = True
        examined = np.argsort(-scores, kind="stable")[: self.examined]
        worst = min(result.positives.values(), default=np.inf)
        highest = np.inf if self.settings.max_score is None else self.settings.max_score
        answers = known[examined]
        near = ~answers & (scores[examined] > self._max_score(worst))
        above = ~answers & ~near & (scores[examined] > highest)
        remaining = int((~answers & ~near & ~above).sum())
        skipped = min(remaining, self.settings.range_min)

        for why, number in zip(
            self.dropped,
            (answers.sum(), near.sum(), above.sum(), skipped, remaining - skipped - len(result.negatives)),
            strict=True,
        ):
            self.dropped[why] += max(0, int(number))

        # A rank counts the higher scores among documents that are not known answers, from 1.
        unanswered = np.sort(scores[~known])
        for text in result.negatives:
            below = np.searchsorted(unanswered, scores[self.positions[text]], side="right")
            self.ranks.append(1 + len(unanswered) - int(below))

    def _max_score(self, worst: float) -> float:
        """Return the highest score that the margins allow a negative of the query, or inf without margins.

        Args:
            worst: lowest score of the query's positives.
        """
        bounds = [np.inf]
        if self.settings.absolute_margin is not None:
            bounds.append(worst - self.settings.absolute_margin)
        if self.settings.relative_margin is not None:
            bounds.append(worst - abs(worst) * self.settings.relative_margin)
        return min(bounds)


def _count_margins(margins: NDArray[Any]) -> dict[str, int]:
    """Count the margins in bins of width `BIN`.
    Return the counts by the bin's lower bound as text. Empty bins are left out.
    """
    bins, counts = np.unique(np.floor(margins / BIN), return_counts=True)
    return {f"{index * BIN:.2f}": int(count) for index, count in zip(bins, counts, strict=True)}


def _build_example(result: MiningResult) -> dict[str, Any]:
    example: dict[str, Any] = {"query": result.query[:SHOWN_CHARACTERS]}
    for name, texts in (("positives", result.positives), ("negatives", result.negatives)):
        example[name] = [[text[:SHOWN_CHARACTERS], round(score, 4)] for text, score in texts.items()]
    return example
