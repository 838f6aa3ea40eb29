"""How far what goes through chains lies from what they were fitted on.

request ─► Drift.watch ─► some of its rows wait in a Window, one for each encoder and version
tap's thread ─► Drift.look ─► sums (drift_tally), no rows ─► stale? ─► Refits (drift_refit), if that is on
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
"""Encoders with versions that are watched, by default; the least recently used leaves."""

ROWS_LEAST = 1000
"""Fewer say nothing of staleness."""

SURE = 2.0
"""Standard errors by which the threshold must be passed."""

Key = tuple[str | None, str, str]
Work = Callable[[], None]


class Drift:
    """The windows of all that goes through chains.

    Args:
        on: whether anybody is to watch.
        window: rows of a generation, see `Window`.
        threshold: of `out_of_domain`, past which a chain is stale.
        registry: of the chains.
        soon: has what takes long done elsewhere than in a request's thread; false if it was not taken.
        refits: told of what is stale; None where nothing is to be fitted.
        windows_most: windows that are kept.
        pace: how many rows of each are looked at.
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
        """Take in some rows of a request; in its own thread."""
        window = self.windows.get(key_of(seen))
        if window is not None:
            if window.take(seen.raw):
                self.soon(partial(self.look, window))
        elif key_of(seen) not in self.without and not self.soon(partial(self.begin, seen)):
            DROPPED.inc(len(seen.raw))

    def begin(self, seen: Seen) -> None:
        """Make the window of a request's rows, and put them there; none for a version without a reference."""
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
        """Look at the rows that wait in a window, and have a chain fitted anew that they make stale."""
        with self.looking:
            tally = window.look()
        if tally is not None and self.refits is not None and self.passed(tally):
            self.refits.consider(window, tally)

    def passed(self, tally: Tally) -> bool:
        """Whether rows are surely farther from the fitted ones than the threshold allows."""
        noise = tally.noise
        enough = tally.rows >= ROWS_LEAST and noise is not None
        return enough and tally.out_of_domain - SURE * (noise or 0.0) > self.threshold

    def looked_at(self) -> Iterator[tuple[Window, Tally]]:
        """All windows of versions there are that rows came to, with their sums up to now."""
        with self.looking:
            self.windows = {key: window for key, window in self.windows.items() if window.loaded.folder.exists()}
            found = [(window, tally) for window in self.windows.values() if (tally := window.look()) is not None]
        for window, tally in found:  # rows looked at here are not looked at again: who watches often must hide nothing
            if self.refits is not None and self.passed(tally):
                self.soon(partial(self.refits.consider, window, tally))
        yield from found

    def report(self, loaded: LoadedChain) -> dict[str, Any]:
        """What `/chains/{name}/drift` answers for a version."""
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
        """The figures of a window."""
        since = datetime.fromtimestamp(window.since, UTC).isoformat(timespec="seconds")
        figures = tally.figures(window.reference)
        return {"encoder": window.encoder, "since": since} | figures | {"stale": self.passed(tally)}

    def stale(self, ref: str) -> bool | None:
        """Whether rows of any encoder make a version stale, as was last looked; None where none came."""
        tallies = [w.tally for w in list(self.windows.values()) if w.loaded.ref == ref and w.tally is not None]
        return any(self.passed(tally) for tally in tallies) if tallies else None

    def warnings(self) -> list[str]:
        """Which live versions are stale, as was last looked, in sentences."""
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
    """What tells the rows of one window from those of others."""
    return seen.encoder, seen.loaded.ref, seen.loaded.digest


def is_of(window: Window, loaded: LoadedChain) -> bool:
    """Whether a window is of a version."""
    return (window.loaded.ref, window.loaded.digest) == (loaded.ref, loaded.digest)
