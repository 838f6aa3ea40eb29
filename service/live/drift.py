"""Drift: how far the vectors that go through chains are from those the chains were fitted on.

request ─► Drift.watch ─► some of its rows wait in a Window, one for each encoder and version
observer thread ─► Drift.look ─► sums (drift_tally), no rows ─► stale? ─► Refits (drift_refit), if that is on
others ─► Drift.report, .warnings, .stale, .looked_at: figures of those sums
"""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from service.live.drift_refit import Refits
from service.live.drift_tally import Tally
from service.live.drift_window import PACE, Pace, Window
from service.live.tap import DROPPED, Seen
from service.registry import LoadedChain, Registry
from transforms.errors import ArtifactError

WINDOWS_MOST = 32
"""Default maximum number of windows; the least recently used one is dropped."""

ROWS_LEAST = 1000
"""Minimum number of rows to judge staleness."""

SURE = 2.0
"""Standard errors by which the threshold must be exceeded."""

Key = tuple[str | None, str, str]
Work = Callable[[], None]


class Drift:
    """The drift windows of all encoders and versions.

    Args:
        on: whether drift is monitored.
        window: rows of a window's generation, see `Window`.
        threshold: value of `out_of_domain` above which a chain is stale.
        registry: registry of the chains.
        soon: queues slow work for another thread; returns False if its queue is full.
        refits: refits stale chains; None for no refits.
        windows_most: maximum number of windows.
        pace: how many rows of each window are evaluated.
    """

    def __init__(
        self,
        on: bool,
        window: int,
        threshold: float,
        registry: Registry,
        soon: Callable[[Work], bool],
        refits: Refits | None = None,
        windows_most: int = WINDOWS_MOST,
        pace: Pace = PACE,
    ) -> None:
        self.on, self.window, self.threshold, self.registry = on, window, threshold, registry
        self.soon, self.refits = soon, refits
        self.windows_most, self.pace = windows_most, pace
        self.windows: dict[Key, Window] = {}
        self.without: set[Key] = set()
        self.looking = threading.Lock()

    def watch(self, seen: Seen) -> None:
        """Queue some rows of a request in their window; called in the request's thread."""
        window = self.windows.get(key_of(seen))
        if window is not None:
            if window.take(seen.raw):
                self.soon(partial(self.look, window))
        elif key_of(seen) not in self.without and not self.soon(partial(self.begin, seen)):
            DROPPED.inc(len(seen.raw))

    def begin(self, seen: Seen) -> None:
        """Create the window of a request's encoder and version and queue the rows in it.

        A version without a readable fit distribution gets no window, and is skipped from then on.
        """
        reference = seen.loaded.reference
        key = key_of(seen)
        if isinstance(reference, ArtifactError):
            self.without.add(key)
            return
        window = self.windows.get(key)  # another request may have come first
        if window is None:
            keep_rows = self.refits is not None
            window = Window(seen.encoder, seen.loaded, reference, self.window, keep_rows, self.pace)
            with self.looking:
                latest = sorted(self.windows.items(), key=lambda item: item[1].used)[1 - self.windows_most :]
                self.windows = dict(latest) | {key: window}
        if window.take(seen.raw):
            self.look(window)

    def look(self, window: Window) -> None:
        """Evaluate the rows queued in a window, and request a refit if they make the chain stale."""
        with self.looking:
            tally = window.look()
        if tally is not None and self.refits is not None and self.passed(tally):
            self.refits.consider(window, tally)

    def passed(self, tally: Tally) -> bool:
        """Return whether `out_of_domain` minus `SURE` standard errors exceeds the threshold, with enough rows."""
        noise = tally.noise
        enough = tally.rows >= ROWS_LEAST and noise is not None
        return enough and tally.out_of_domain - SURE * (noise or 0.0) > self.threshold

    def looked_at(self) -> Iterator[tuple[Window, Tally]]:
        """Evaluate all queued rows, drop windows of deleted versions, and yield the other windows with their sums.

        Chains that this makes stale are refitted as in `look`.
        """
        with self.looking:
            self.windows = {key: window for key, window in self.windows.items() if window.loaded.folder.exists()}
            found = [(window, tally) for window in self.windows.values() if (tally := window.look()) is not None]
        for window, tally in found:  # rows looked at here are not looked at again: who watches often must hide nothing
            if self.refits is not None and self.passed(tally):
                self.soon(partial(self.refits.consider, window, tally))
        yield from found

    def report(self, loaded: LoadedChain) -> dict[str, Any]:
        """Return the drift of a version as the JSON of `/chains/{name}/drift`, over all encoders."""
        reference = loaded.reference
        unknown = str(reference) if isinstance(reference, ArtifactError) else None
        here = [] if unknown else [(w, t) for w, t in self.looked_at() if is_of(w, loaded)]
        return {
            "chain": loaded.ref,
            "unknown": unknown or (None if self.on else "LATHE_DRIFT is off"),
            "window": self.window,
            "threshold": self.threshold,
            "stale": any(self.passed(tally) for _, tally in here) if here else None,
            "encoders": [self.described(window, tally) for window, tally in here],
        }

    def described(self, window: Window, tally: Tally) -> dict[str, Any]:
        """Return the figures of a window as JSON."""
        since = datetime.fromtimestamp(window.since, UTC).isoformat(timespec="seconds")
        figures = tally.figures(window.reference)
        return {"encoder": window.encoder, "since": since} | figures | {"stale": self.passed(tally)}

    def stale(self, ref: str) -> bool | None:
        """Return whether any encoder's rows made a version stale at the last evaluation; None without rows."""
        tallies = [w.tally for w in list(self.windows.values()) if w.loaded.ref == ref and w.tally is not None]
        return any(self.passed(tally) for tally in tallies) if tallies else None

    def warnings(self) -> list[str]:
        """Return a sentence for each live version that was stale at the last evaluation."""
        return [
            f"{window.loaded.ref} is stale: of what came from {window.encoder or 'vectors'}, {tally.rows:,} rows, "
            f"the mean percentile is {tally.out_of_domain:.3f} (threshold {self.threshold}); "
            f"see /chains/{window.loaded.ref}/drift"
            for window in list(self.windows.values())
            if (tally := window.tally) is not None
            and self.passed(tally)
            and self.registry.live(window.loaded.name) == window.loaded.version
        ]


def key_of(seen: Seen) -> Key:
    """Return the key of the window of a request's rows: encoder, version and digest."""
    return seen.encoder, seen.loaded.ref, seen.loaded.digest


def is_of(window: Window, loaded: LoadedChain) -> bool:
    """Return whether a window is of this very version."""
    return (window.loaded.ref, window.loaded.digest) == (loaded.ref, loaded.digest)
