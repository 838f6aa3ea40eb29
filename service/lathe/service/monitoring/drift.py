"""Drift: how far the vectors that go through chains are from those the chains were fitted on.

request ─► Drift.observe ─► some of its rows wait in a Window, one for each encoder and version
thread of LiveVectors ─► Drift.evaluate ─► sums (Tally), no rows
others ─► Drift.report, .warnings, .is_stale, .evaluate_all: measures of drift, from those sums
"""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from prometheus_client import Gauge

from lathe.service.chains.loaded_chain import LoadedChain
from lathe.service.chains.registry import Registry
from lathe.service.encoders.live_vectors import DROPPED, ObservedVectors
from lathe.service.monitoring.window import PACE, Pace, Tally, Window
from lathe.transforms.errors import ArtifactError

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
        """Queue a sample of a request's vectors in the window of their encoder and chain version.

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
        """Queue a request's rows in the window of its encoder and chain version, which is created if missing.

        A full block of rows is evaluated. The least recently used window over `max_windows` is dropped. A version
        without a readable fit distribution gets no window, and is skipped from then on.
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
        """Return whether live rows are significantly further from the fitted rows than the threshold allows.

        That is so if `out_of_domain` exceeds the threshold by more than `STANDARD_ERRORS` of its standard errors. The
        result is False with fewer than `MIN_WINDOW_ROWS` rows, or rows of a single request.
        """
        noise = tally.standard_error
        has_enough_rows = tally.rows >= MIN_WINDOW_ROWS and noise is not None
        return has_enough_rows and tally.out_of_domain - STANDARD_ERRORS * (noise or 0.0) > self.threshold

    def evaluate_all(self) -> Iterator[tuple[Window, Tally]]:
        """Evaluate the queued rows of all windows, and yield `(window, sums over its rows)` for those with rows.

        Windows of deleted versions are dropped.
        """
        with self.evaluating:
            self.windows = {key: window for key, window in self.windows.items() if window.loaded.folder.exists()}
            # Within the lock, as a window takes one evaluation at a time.
            evaluated = [
                (window, tally) for window in self.windows.values() if (tally := window.evaluate()) is not None
            ]
        yield from evaluated

    def report(self, loaded: LoadedChain) -> dict[str, Any]:
        """Return how far live vectors are from the rows that a chain was fitted on, as JSON of `/chains/{name}/drift`.

        All queued rows are evaluated first. The report has the measures of drift for each encoder, whether the chain is
        stale for any (None without rows), and in `unknown` why drift is not known.
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
        """Return whether the traffic of a version had drifted too far, for any encoder, at the last evaluation.

        Returns None if there was no evaluation.
        """
        tallies = [w.tally for w in list(self.windows.values()) if w.loaded.ref == ref and w.tally is not None]
        return any(self.exceeds_threshold(tally) for tally in tallies) if tallies else None

    def warnings(self) -> list[str]:
        """Return a sentence for each live version of a chain whose traffic had drifted too far when last evaluated."""
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

    Measures that are unknown, and windows that were dropped, have no gauge.
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
