"""A window over the latest rows that one encoder sent through one version of a chain.

Sums over rows of live traffic relative to the rows a chain was fitted on.

Sums of different rows can be added. They contain no row.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.service.chains.loaded_chain import LoadedChain
from lathe.service.encoders.live_vectors import DROPPED
from lathe.transforms.artifact import FitDistribution, vector_norms
from lathe.transforms.chain import retained_subspace
from lathe.transforms.statistics import Subspace

TENTHS = 10
"""Number of bins of the histogram of percentiles."""
FAR = 1000.0
"""Multiple of the fitted rows' norms beyond which rows are counted but left out of sums that they would dominate."""


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over some rows of live traffic, by which they are compared with the rows that a chain was fitted on.

    In them z is a row minus the fitted mean, divided by the fitted σ.

    Attributes:
        requests: number of requests that the rows came in.
        rows: number of rows.
        summed: number of rows in `shift`, `energy` and `outside`.
        shift: Σ z, `(d,)`.
        energy: Σ ‖z‖².
        outside: part of `energy` outside the subspace that the chain retains.
        outliers: number of rows with a norm outside the fitted range.
        clipped: Σ c, where c is the share of a row's values beyond the range of the chain's codes; NaN without a range.
        ranks: Σ p, where p is the percentile of a row's score among held-out rows, in [0, 1].
        tenths: `(10,)`, histogram of p.
        request_sums: Σ s², Σ s n, Σ n² over the requests, of n rows each, with s = Σ p of a request.
    """

    requests: int
    rows: int
    summed: int
    shift: NDArray[np.float64]
    energy: float
    outside: float
    outliers: int
    clipped: float
    ranks: float
    tenths: NDArray[np.int64]
    request_sums: NDArray[np.float64]

    @classmethod
    def from_requests(
        cls,
        reference: FitDistribution,
        subspace: Subspace | None,
        requests: Sequence[NDArray[np.float32]],
        measure_clipped: Callable[[NDArray[np.float32]], float | None] = lambda _: None,
    ) -> "Tally":
        """Return the sums over the rows of requests, relative to the distribution of the fitted rows.

        Rows with norms beyond `FAR` times the fitted ones are counted, but left out of `shift`, `energy` and `outside`.

        Args:
            reference: distribution of the rows the chain was fitted on.
            subspace: subspace that the chain retains; None if it is unknown, which gives `outside` 0.
            requests: rows `(n, d)` of each request, at least one each.
            measure_clipped: returns the share of the values of rows `(n, d)` beyond the range of the chain's codes,
                None if there is no such range.
        """
        rows, counts = np.concatenate(requests), np.array([len(request_rows) for request_rows in requests])
        norms = vector_norms(rows)
        # One row with a huge norm would otherwise decide the mean of all.
        near = norms <= FAR * reference.norms[1]

        gaussian = reference.gaussian
        standardised = gaussian.standardize(rows)
        ranks = reference.quantile_ranks(gaussian.score(standardised))
        summed = standardised if near.all() else standardised[near]

        sums = np.add.reduceat(ranks, np.cumsum(counts) - counts)  # Σ p of each request, `(requests,)`
        clipped = measure_clipped(rows)
        return cls(
            len(requests),
            len(rows),
            len(summed),
            summed.sum(axis=0, dtype=np.float64),
            float(np.vecdot(summed, summed).sum(dtype=np.float64)),
            0.0 if subspace is None else float(subspace.energy_outside(summed).sum()),
            int(reference.outlier_norms(norms).sum()),
            np.nan if clipped is None else clipped * len(rows),
            float(ranks.sum()),
            np.bincount(np.minimum((ranks * TENTHS).astype(int), TENTHS - 1), minlength=TENTHS),
            np.array([sums @ sums, sums @ counts, counts @ counts], np.float64),
        )

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    @property
    def out_of_domain(self) -> float:
        """Mean percentile of the rows' scores among held-out rows.

        It is 0.5 as fitted, and 1 if all rows are farther than any held-out row.
        """
        return self.ranks / self.rows

    @property
    def standard_error(self) -> float | None:
        """Standard error of `out_of_domain`, with the rows of a request as one cluster. None for one request."""
        if self.requests < 2:
            return None
        # Rows of a request are alike, so requests are the independent units: Σ (s − mean n)² over them, expanded.
        squares, products, counts = self.request_sums.tolist()
        mean = self.out_of_domain
        spread = max(squares - 2 * mean * products + mean * mean * counts, 0.0)
        return float(np.sqrt(spread * self.requests / (self.requests - 1))) / self.rows

    def to_json(self, reference: FitDistribution) -> dict[str, Any]:
        """Return the drift measures that follow from these sums, as JSON for `/chains/{name}/drift`.

        docs/drift.md explains them.
        """
        outside = self.outside / self.energy if reference.outside is not None and self.energy else None
        return {
            "rows": self.rows,
            "requests": self.requests,
            **self._compare_means(reference),
            "outside": {"fitted": reference.outside, "live": outside},
            "odd_norms": self.outliers / self.rows,
            "clipped": None if np.isnan(self.clipped) else self.clipped / self.rows,
            "out_of_domain": self.out_of_domain,
            "noise": self.standard_error,
            "tenths": (self.tenths / self.rows).tolist(),
        }

    def _compare_means(self, reference: FitDistribution) -> dict[str, Any]:
        """Compare the mean of live rows with the mean of fitted rows, and return cosine, norms and standard error.

        The keys are `mean_cosine`, `mean_norm` (`fitted` and `live`) and `mean_noise`, the standard error of the mean
        of so many rows. All but the fitted norm are None if all rows were too far to be summed.
        """
        gaussian = reference.gaussian
        if not self.summed:
            norms = {"fitted": gaussian.mean_norm, "live": None}
            return {"mean_cosine": None, "mean_norm": norms, "mean_noise": None}
        shift = self.shift / self.summed
        # With z = (x − μ) / σ, the mean of the rows x is μ + σ Σ z / n, `(d,)`.
        live = gaussian.mean + float(gaussian.spread) * shift
        # Variance of z, summed over dimensions: Σ ‖z‖² / n − ‖Σ z / n‖². Rounding may take it below 0.
        norm, variance = float(np.linalg.norm(live)), max(self.energy / self.summed - float(shift @ shift), 0.0)
        norm_product = norm * gaussian.mean_norm
        return {
            "mean_cosine": float(live @ gaussian.mean) / norm_product if norm_product else None,
            "mean_norm": {"fitted": gaussian.mean_norm, "live": norm},
            "mean_noise": float(gaussian.spread) * float(np.sqrt(variance / self.summed)),
        }


Rows = NDArray[np.float32]

BLOCK_ROWS = 256
"""Rows evaluated together: one by one they would take ten times as long."""

ROWS_PER_REQUEST, SAMPLED_PART = 8, 8
"""Rows sampled from a request: this many, or an eighth of a large one. More would add little, as they are alike."""


@dataclass(frozen=True)
class Pace:
    """Limits on the rows that are evaluated.

    Attributes:
        rows_a_second: rows per second after a first generation at once. With more traffic, some requests say as much as
            all would, and evaluating all of them would cost requests that are fully cached a fiftieth of their time.
        waiting_rows: maximum number of queued rows; more are dropped.
    """

    rows_a_second: float = 256
    waiting_rows: int = 64 * BLOCK_ROWS


PACE = Pace()


class Window:
    """The last `size` to 2 × `size` rows, as two generations.

    The older generation is dropped when the younger is full.

    Args:
        encoder: name of the encoder; None for vectors that callers sent.
        loaded: version of the chain.
        reference: distribution of the rows the version was fitted on.
        size: rows of a generation.
        pace: limits on the rows that are evaluated.
        clock: returns seconds, for the pace.
    """

    def __init__(
        self,
        encoder: str | None,
        loaded: LoadedChain,
        reference: FitDistribution,
        size: int,
        pace: Pace = PACE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.encoder, self.loaded, self.reference = encoder, loaded, reference
        self.size, self.pace, self.clock = size, pace, clock
        self.retained = retained_subspace(loaded.chain)
        # Time of the first row in seconds since 1970, and sums over the rows, of each generation.
        self.generations: list[tuple[float, Tally]] = []
        self.waiting: deque[Rows] = deque()
        self.waiting_rows = 0
        self.tally: Tally | None = None
        self.used = clock()
        self.arrived = time.time()
        self.allowed = float(size)

    def queue_sample(self, rows: Rows) -> bool:
        """Queue a sample of a request's rows `(n, d)`, and return whether it is time to call `evaluate`.

        Rows of other dimensions and rows over the pace are ignored. If the queue is full, the rows are counted as
        dropped. Takes microseconds and no lock: several requests may call it at once.
        """
        if rows.shape[1] != self.reference.gaussian.dimensions:
            return False
        if self.waiting_rows >= self.pace.waiting_rows:
            DROPPED.inc(len(rows))
            return True

        now = self.clock()
        # A bucket of allowed rows, filled by the time since the last request up to one generation.
        allowed = min(self.allowed + self.pace.rows_a_second * (now - self.used), self.size)
        self.used = now
        if allowed < 1:
            self.allowed = allowed
            return False

        if not self.waiting:
            self.arrived = time.time()
        sample = _sample_rows(rows)
        self.allowed = allowed - len(sample)
        self.waiting.append(sample)
        before = self.waiting_rows
        self.waiting_rows = before + len(sample)
        return self.waiting_rows // BLOCK_ROWS > before // BLOCK_ROWS

    def evaluate(self) -> Tally | None:
        """Move the queued rows into the window. Return the sums over all its rows, or None if the window is empty.

        The sums are also stored in `tally`. Concurrent calls are not allowed.
        """
        arrived = self.arrived
        # Only as many as there are now: requests add to the other end meanwhile.
        waiting = [self.waiting.popleft() for _ in range(len(self.waiting))]
        self.waiting_rows = 0
        if waiting:
            tally = Tally.from_requests(self.reference, self.retained, waiting, self.loaded.clipped_share)
            # The rows join the younger generation. If it is full they begin a new one, and the oldest is dropped. Rows
            # are never split: a generation may end with more than `size`.
            if self.generations and self.generations[-1][1].rows < self.size:
                since, younger = self.generations[-1]
                self.generations = [*self.generations[:-1], (since, younger + tally)]
            else:
                self.generations = [*self.generations[-1:], (arrived, tally)]
            self.tally = sum((last for _, last in self.generations[1:]), start=self.generations[0][1])
        return self.tally

    @property
    def since(self) -> float:
        """Time of the window's first row in seconds since 1970, or the current time if there is no row."""
        return self.generations[0][0] if self.generations else time.time()


def _sample_rows(rows: Rows) -> Rows:
    """Return `ROWS_PER_REQUEST` rows, or an eighth if that is more, evenly spaced from a random start."""
    if len(rows) <= ROWS_PER_REQUEST:
        return rows
    count = max(ROWS_PER_REQUEST, len(rows) // SAMPLED_PART)
    chosen: Rows = rows[((random.random() + np.arange(count)) * (len(rows) / count)).astype(int)]
    return chosen
