"""What was mined, and why not more: counts, ranks, margins, examples."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.finetuning.candidates import Candidates
from training.finetuning.extras import NegativeSettings
from training.finetuning.mining import BLOCK_SCORES, Auxiliary, Mined

EXAMPLES = 5
SHOWN_CHARACTERS = 200
BIN = 0.05
"""Of the histogram of differences of cosines, from −1 to 1."""
SAMPLED_RANGE = 10
"""The library looks at so many documents for each negative where no range is given and some may be passed over."""


@dataclass(frozen=True)
class Statistics:
    """What was mined of a source.

    Attributes:
        queries: distinct ones.
        documents: distinct ones that were looked through.
        asked: negatives of each query.
        kept: negatives of all queries.
        short: share of queries with fewer than asked for; `without` of those with none.
        dropped: documents near a query that were no negatives of it, by why.
        margin: quantiles of score(positive) − score(negative): 5 %, a quarter, half, three quarters, 95 %.
        histogram: of the same, counts by the lower bound of their bin.
        ranks: median, 95 % quantile and maximum of the negatives' ranks among documents that do not answer.
        examples: queries with positives and negatives, each with its score.
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

    def as_json(self) -> dict[str, Any]:
        """As a file holds it."""
        return asdict(self)


def describe(
    candidates: Candidates, auxiliary: Auxiliary, settings: NegativeSettings, count: int, mined: Sequence[Mined]
) -> Statistics:
    """The statistics of what was mined."""
    tally = Tally(candidates, settings, count)
    documents = auxiliary.encode_document(list(candidates.documents.values()))
    step = max(1, BLOCK_SCORES // max(1, len(documents)))
    for start in range(0, len(mined), step):
        some = mined[start : start + step]
        scores = auxiliary.encode_query([one.query for one in some]) @ documents.T
        for one, row in zip(some, scores, strict=True):
            tally.add(one, row)
    margins = np.array([p - n for one in mined for p in one.positives.values() for n in one.negatives.values()])
    counts = np.array([len(one.negatives) for one in mined])
    return Statistics(
        queries=len(mined),
        documents=len(candidates.documents),
        asked=settings.num_negatives,
        kept=int(counts.sum()),
        short=float((counts < settings.num_negatives).mean()),
        without=float((counts == 0).mean()),
        dropped={"text of the target's test": candidates.forbidden} | tally.dropped,
        margin=np.quantile(margins, [0.05, 0.25, 0.5, 0.75, 0.95]).round(4).tolist() if len(margins) else [],
        histogram=histogram(margins),
        ranks=[int(rank) for rank in np.quantile(tally.ranks, [0.5, 0.95, 1])] if tally.ranks else [],
        examples=[example(one) for one in mined if one.negatives][:EXAMPLES],
    )


class Tally:
    """Why documents near a query are no negatives of it, and the ranks of those that are."""

    def __init__(self, candidates: Candidates, settings: NegativeSettings, count: int) -> None:
        self.candidates, self.settings = candidates, settings
        self.places = {text: place for place, text in enumerate(candidates.documents.values())}
        positives = max(map(len, candidates.answers.values()), default=0)
        guarded = [settings.absolute_margin, settings.relative_margin, settings.max_score] != [None] * 3
        looked = count * SAMPLED_RANGE if guarded else count
        self.range = (settings.range_max or settings.range_min + looked + positives) + positives
        self.ranks: list[int] = []
        self.dropped = {"known to answer the query": 0, "within the margin": 0, "above max_score": 0}
        self.dropped |= {"before range_min": 0, "not needed": 0}

    def add(self, one: Mined, scores: NDArray[Any]) -> None:
        """A query with the scores `(m,)` of all documents."""
        known = np.zeros(len(scores), bool)
        known[[self.places[text] for text in one.positives]] = True
        looked = np.argsort(-scores, kind="stable")[: self.range]
        worst = min(one.positives.values(), default=np.inf)
        highest = np.inf if self.settings.max_score is None else self.settings.max_score
        answers = known[looked]
        near = ~answers & (scores[looked] > self.bound(worst))
        above = ~answers & ~near & (scores[looked] > highest)
        left = int((~answers & ~near & ~above).sum())
        passed = min(left, self.settings.range_min)
        for why, number in zip(
            self.dropped,
            (answers.sum(), near.sum(), above.sum(), passed, left - passed - len(one.negatives)),
            strict=True,
        ):
            self.dropped[why] += max(0, int(number))
        others = np.sort(scores[~known])
        for text in one.negatives:
            self.ranks.append(1 + len(others) - int(np.searchsorted(others, scores[self.places[text]], side="right")))

    def bound(self, worst: float) -> float:
        """The score that a negative must not exceed beside that of the query's worst positive."""
        bounds = [np.inf]
        if self.settings.absolute_margin is not None:
            bounds.append(worst - self.settings.absolute_margin)
        if self.settings.relative_margin is not None:
            bounds.append(worst - abs(worst) * self.settings.relative_margin)
        return min(bounds)


def histogram(margins: NDArray[Any]) -> dict[str, int]:
    """How many differences lie in each bin that has any."""
    places, counts = np.unique(np.floor(margins / BIN), return_counts=True)
    return {f"{place * BIN:.2f}": int(count) for place, count in zip(places, counts, strict=True)}


def example(one: Mined) -> dict[str, Any]:
    """A query with what was found."""
    found: dict[str, Any] = {"query": one.query[:SHOWN_CHARACTERS]}
    for name, texts in (("positives", one.positives), ("negatives", one.negatives)):
        found[name] = [[text[:SHOWN_CHARACTERS], round(score, 4)] for text, score in texts.items()]
    return found
