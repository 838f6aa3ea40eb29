"""Probabilities that the hits of a generation's searches are right, by the model of a calibration."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.service.index.embedded.rows import GenerationRows
from lathe.service.index.embedded.vector_formats import VectorFormat
from lathe.service.index.reducer import Vectors
from lathe.transforms.relevance import MIN_HITS, RelevanceModel, Searches

STALE_SHARE = 0.2
"""Share of new rows above which a calibration is stale."""


@dataclass(frozen=True)
class Facts:
    """What is told of a calibration.

    Attributes:
        id: id of its inputs.
        space_id: space of the vectors that it is of.
        kind: whether hubs are measured with queries or with rows.
        base_rate: assumed share of queries that have an answer; None where judgements set the level.
        queries: number of unjudged queries.
        rows: number of rows then.
        last_label: highest label of a row then.
        seconds: time that the calibration took.
        figures: report on held-out judged queries, or None without judgements; see `ProbabilityReport`.
        sentence: what the figures say.
    """

    id: str
    space_id: str
    kind: str
    base_rate: float | None
    queries: int
    rows: int
    last_label: int
    seconds: float
    figures: dict[str, Any] | None
    sentence: str


class Calibration:
    """Probabilities of the hits of a generation's searches, of which a generation has one or none.

    Hubs of rows are measured when a row is first hit, and for all rows when the index is idle.
    """

    def __init__(self, rows: GenerationRows, vector_format: VectorFormat, model: RelevanceModel, facts: Facts) -> None:
        self.rows = rows
        self.vector_format = vector_format
        self.model = model
        self.facts = facts
        self.hubs = np.empty(0, np.float32)  # by row, NaN where not measured
        self.measured = 0  # number of first rows whose hubs are all measured

    def estimate(self, queries: Vectors, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the probability that each hit is right, `(q, k)`.

        It is NaN for queries with fewer than ten hits.

        Args:
            queries: reduced queries `(q, d)`.
            rows: row numbers of the hits `(q, k)`, −1 where there are fewer.
            scores: cosines of queries and compact vectors `(q, k)`.
        """
        if rows.shape[1] >= MIN_HITS and rows.min(initial=0) >= 0:  # the usual case
            return self.model.predict_proba(Searches(queries, scores, self.find_hubs(rows)))

        probabilities = np.full(rows.shape, np.nan)
        if rows.shape[1] >= MIN_HITS and (complete := rows[:, MIN_HITS - 1] >= 0).any():
            found = rows[complete]
            known = np.where(found < 0, 0, scores[complete])
            searches = Searches(queries[complete], known, self.find_hubs(found))
            probabilities[complete] = np.where(found < 0, np.nan, self.model.predict_proba(searches))
        return probabilities

    def find_hubs(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the hubs of rows `(q, k)`, after measuring those that are missing.

        For row −1 it is any number.
        """
        if self.rows.count > len(self.hubs):
            self._grow()
        hubs = self.hubs  # searches of other threads may replace the array, and measure the same rows again
        found = hubs[rows]
        if math.isnan(found.sum()):  # the quickest test of so few numbers
            self._measure(hubs, np.unique(rows[np.isnan(found) & (rows >= 0)]))
            found = np.where(rows >= 0, hubs[rows], 0)
        return found

    def _grow(self) -> None:
        hubs = np.full(len(self.rows.alive), np.nan, np.float32)
        hubs[: len(self.hubs)] = self.hubs
        self.hubs = hubs

    def _measure(self, hubs: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        if len(rows):
            compact = self.rows.take_view().compact[rows]
            hubs[rows] = self.model.measure_hubs(self.vector_format.decode(compact))

    def measure_next(self, count: int) -> int:
        """Measure the hubs of up to `count` rows, and return how many rows may lack one."""
        end = self.rows.count
        if end > len(self.hubs):
            self._grow()
        rows = np.arange(self.measured, min(end, self.measured + count))
        self._measure(self.hubs, rows[np.isnan(self.hubs[rows])])
        self.measured += len(rows)
        return end - self.measured

    @property
    def is_stale(self) -> bool:
        """Whether more than a fifth of the rows are new."""
        labels = self.rows.take_view().labels
        added = len(labels) - int(np.searchsorted(labels, self.facts.last_label, "right"))
        return added > STALE_SHARE * max(self.facts.rows, 1)

    def describe(self) -> dict[str, Any]:
        """Return the facts and whether the calibration is stale, as a JSON object."""
        return asdict(self.facts) | {"stale": self.is_stale}
