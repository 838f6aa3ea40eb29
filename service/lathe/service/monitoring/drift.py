"""Drift: how far the vectors that go through chains are from those the chains were fitted on.

request ─► Drift.observe ─► some of its rows wait in a Window, one for each encoder and version
thread of LiveVectors ─► Drift.evaluate ─► sums (Tally), no rows
others ─► Drift.report, .warnings, .is_stale, .evaluate_all: measures of drift, from those sums
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Gauge

from lathe.service.chains.loaded_chain import LoadedChain
from lathe.service.chains.registry import Registry
from lathe.service.encoders.live_vectors import DROPPED, ObservedVectors
from lathe.transforms.artifact import FitDistribution, vector_norms
from lathe.transforms.chain import retained_subspace
from lathe.transforms.errors import ArtifactError
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
        """Sum the rows of requests, standardized by the distribution of the fitted rows, into a `Tally`.

        Rows with norms beyond `FAR` times the fitted norms are counted, but left out of `shift`, `energy` and
        `outside`.

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
        """Compute the drift measures from these sums, as JSON of `/chains/{name}/drift`. See docs/drift.md."""
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
        """Compare the mean of live rows with the mean of fitted rows: cosine, both norms, and standard error.

        The keys are `mean_cosine`, `mean_norm` (`fitted` and `live`) and `mean_noise`, the standard error of a mean of
        so many rows. All but the fitted norm are None if all rows were too far to be summed.
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
        """Add the queued rows to the window, and return the sums over all its rows, or None if it is empty.

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
    """Sample `ROWS_PER_REQUEST` rows, or an eighth of the rows if that is more, evenly spaced from a random start."""
    if len(rows) <= ROWS_PER_REQUEST:
        return rows
    count = max(ROWS_PER_REQUEST, len(rows) // SAMPLED_PART)
    chosen: Rows = rows[((random.random() + np.arange(count)) * (len(rows) / count)).astype(int)]
    return chosen


MAX_WINDOWS = 32
"""Default maximum number of windows; the least recently used one is dropped."""

MIN_WINDOW_ROWS = 1000
"""Minimum number of rows to judge staleness."""

STANDARD_ERRORS = 2.0
"""Standard errors by which the threshold must be exceeded."""

Key = tuple[str | None, str, str]
Work = Callable[[], None]

LABELS = ["encoder", "chain"]
ROWS = Gauge("lathe_drift_rows", "Rows in the window that figures are of", LABELS)
OUT_OF_DOMAIN = Gauge("lathe_drift_out_of_domain", "Mean percentile among held-out rows; .5 as fitted", LABELS)
MEAN_COSINE = Gauge("lathe_drift_mean_cosine", "Cosine of the live mean to the fitted one", LABELS)
MEAN_NORM = Gauge("lathe_drift_mean_norm_ratio", "Length of the live mean over that of the fitted one", LABELS)
OUTSIDE = Gauge("lathe_drift_outside", "Share of the energy outside what the chain keeps", LABELS)
ODD_NORMS = Gauge("lathe_drift_odd_norms", "Share of rows with a length unlike the fitted ones", LABELS)
CLIPPED = Gauge("lathe_drift_clipped", "Share of the values coded beyond the fitted range of the codes", LABELS)
STALE = Gauge("lathe_drift_stale", "1 where the chain is stale", LABELS)
GAUGES = (ROWS, OUT_OF_DOMAIN, MEAN_COSINE, MEAN_NORM, OUTSIDE, ODD_NORMS, CLIPPED, STALE)


class Drift:
    """The windows of live rows by which drift is measured, one for each encoder and version of a chain.

    Args:
        window: minimum rows of a full window, which holds up to twice as many of the latest rows.
        threshold: value of `out_of_domain`, the rows' mean percentile among the held-out rows of the fit, above which a
            chain is stale.
        submit: queues slow work for another thread; returns False if its queue is full.
        max_windows: maximum number of windows.
        pace: how many rows of each window are evaluated.
    """

    def __init__(
        self,
        on: bool,
        window: int,
        threshold: float,
        registry: Registry,
        submit: Callable[[Work], bool],
        max_windows: int = MAX_WINDOWS,
        pace: Pace = PACE,
    ) -> None:
        self.on, self.window, self.threshold, self.registry = on, window, threshold, registry
        self.submit = submit
        self.max_windows, self.pace = max_windows, pace
        self.windows: dict[Key, Window] = {}
        self.skipped: set[Key] = set()
        self.evaluating = threading.Lock()

    def observe(self, observed: ObservedVectors) -> None:
        """Queue a sample of a request's vectors in the window of its encoder and chain version, or submit slow work.

        If enough rows wait, the window's evaluation is submitted. If there is no window yet, its creation is submitted,
        and rows are counted as dropped if that queue is full. Called in the request's thread.
        """
        # Without a lock: `windows` is replaced as a whole, never changed in place.
        window = self.windows.get(_build_key(observed))
        if window is not None:
            if window.queue_sample(observed.raw):
                self.submit(partial(self.evaluate, window))
        elif _build_key(observed) not in self.skipped and not self.submit(partial(self.begin_window, observed)):
            DROPPED.inc(len(observed.raw))

    def begin_window(self, observed: ObservedVectors) -> None:
        """Queue a request's rows in a window, which is created if missing. The window used least may be dropped.

        A full block of rows is evaluated. A window is dropped if there are more than `max_windows`. A version without a
        readable fit distribution gets no window, and is skipped from then on.
        """
        reference = observed.loaded.fit_distribution
        key = _build_key(observed)
        if isinstance(reference, ArtifactError):
            self.skipped.add(key)
            return
        window = self.windows.get(key)  # another request may have come first
        if window is None:
            window = Window(observed.encoder, observed.loaded, reference, self.window, self.pace)
            with self.evaluating:
                # One place is left for the new window.
                latest = sorted(self.windows.items(), key=lambda item: item[1].used)[1 - self.max_windows :]
                self.windows = dict(latest) | {key: window}
        if window.queue_sample(observed.raw):
            self.evaluate(window)

    def evaluate(self, window: Window) -> None:
        """Compute the sums over a window from the rows queued in it, in one thread at a time."""
        with self.evaluating:
            window.evaluate()

    def exceeds_threshold(self, tally: Tally) -> bool:
        """Return whether `out_of_domain` significantly exceeds the threshold. False for too few rows or one request.

        The excess must be more than `STANDARD_ERRORS` standard errors. `MIN_WINDOW_ROWS` rows are needed.
        """
        noise = tally.standard_error
        has_enough_rows = tally.rows >= MIN_WINDOW_ROWS and noise is not None
        return has_enough_rows and tally.out_of_domain - STANDARD_ERRORS * (noise or 0.0) > self.threshold

    def evaluate_all(self) -> Iterator[tuple[Window, Tally]]:
        """Evaluate the queued rows of all windows, and yield `(window, sums)`. Windows of deleted versions are dropped.

        Windows without rows are not yielded.
        """
        with self.evaluating:
            self.windows = {key: window for key, window in self.windows.items() if window.loaded.folder.exists()}
            # Within the lock, as a window takes one evaluation at a time.
            evaluated = [
                (window, tally) for window in self.windows.values() if (tally := window.evaluate()) is not None
            ]
        yield from evaluated

    def report(self, loaded: LoadedChain) -> dict[str, Any]:
        """Evaluate all queued rows, and report the drift of a chain's live vectors, as JSON of `/chains/{name}/drift`.

        The report has the measures of drift for each encoder, whether the chain is stale for any (None without rows),
        and in `unknown` why drift is not known.
        """
        reference = loaded.fit_distribution
        unknown = str(reference) if isinstance(reference, ArtifactError) else None
        version = (loaded.ref, loaded.digest)
        windows = [] if unknown else list(self.evaluate_all())
        evaluated = [(w, t) for w, t in windows if (w.loaded.ref, w.loaded.digest) == version]
        return {
            "chain": loaded.ref,
            "unknown": unknown or (None if self.on else "LATHE_DRIFT is off"),
            "window": self.window,
            "threshold": self.threshold,
            "stale": any(self.exceeds_threshold(tally) for _, tally in evaluated) if evaluated else None,
            "encoders": [self._describe_window(window, tally) for window, tally in evaluated],
        }

    def _describe_window(self, window: Window, tally: Tally) -> dict[str, Any]:
        since = datetime.fromtimestamp(window.since, UTC).isoformat(timespec="seconds")
        measures = tally.to_json(window.reference)
        return {"encoder": window.encoder, "since": since} | measures | {"stale": self.exceeds_threshold(tally)}

    def is_stale(self, ref: str) -> bool | None:
        """Return whether a version was stale for any encoder at the last evaluation, or None without an evaluation."""
        tallies = [w.tally for w in list(self.windows.values()) if w.loaded.ref == ref and w.tally is not None]
        return any(self.exceeds_threshold(tally) for tally in tallies) if tallies else None

    def warnings(self) -> list[str]:
        """List a sentence for each live version of a chain that was stale at the last evaluation."""
        return [
            f"{window.loaded.ref} is stale: of what came from {window.encoder or 'vectors'}, {tally.rows:,} rows, "
            f"the mean percentile is {tally.out_of_domain:.3f} (threshold {self.threshold}); "
            f"see /chains/{window.loaded.ref}/drift"
            for window in list(self.windows.values())
            if (tally := window.tally) is not None
            and self.exceeds_threshold(tally)
            and self.registry.live(window.loaded.name) == window.loaded.version
        ]


def _build_key(observed: ObservedVectors) -> Key:
    return observed.encoder, observed.loaded.ref, observed.loaded.digest


def update_drift_gauges(drift: Drift) -> None:
    """Evaluate all queued rows, and set the Prometheus gauges of drift for each encoder and chain version.

    Gauges of unknown measures, and of windows that were dropped, are removed.
    """
    for gauge in GAUGES:
        gauge.clear()
    for window, tally in drift.evaluate_all():
        measures = tally.to_json(window.reference)
        norm = measures["mean_norm"]
        values = {
            ROWS: tally.rows,
            OUT_OF_DOMAIN: tally.out_of_domain,
            MEAN_COSINE: measures["mean_cosine"],
            MEAN_NORM: norm["live"] / norm["fitted"] if norm["live"] is not None and norm["fitted"] else None,
            OUTSIDE: measures["outside"]["live"],
            ODD_NORMS: measures["odd_norms"],
            CLIPPED: measures["clipped"],
            STALE: int(drift.exceeds_threshold(tally)),
        }
        for gauge, value in values.items():
            if value is not None:
                gauge.labels(window.encoder or "none", window.loaded.ref).set(value)
