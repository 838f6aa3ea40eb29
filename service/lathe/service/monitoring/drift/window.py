"""A window over the latest rows that one encoder sent through one version of a chain."""

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lathe.service.chains.loaded_chain import LoadedChain
from lathe.service.encoders.live_vectors import DROPPED
from lathe.service.monitoring.drift.tally import Tally
from lathe.transforms.artifact import FitDistribution
from lathe.transforms.chain import retained_subspace

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


@dataclass
class WindowGeneration:
    """Consecutive rows of a window.

    Attributes:
        since: time of the first row, in seconds since 1970.
        tally: sums over the rows.
    """

    since: float
    tally: Tally


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
        self.generations: list[WindowGeneration] = []
        self.waiting: deque[Rows] = deque()
        self.waiting_rows = 0
        self.tally: Tally | None = None
        self.used = clock()
        self.arrived = time.time()
        self.allowed = float(size)

    def queue_sample(self, rows: Rows) -> bool:
        """Queue a sample of a request's rows `(n, d)`. Return whether it is time to call `evaluate`.

        Rows of other dimensions and rows over the pace are ignored. If the queue is full, the rows are counted as
        dropped. Takes microseconds and no lock: several requests may call it at once.

        Returns:
            Whether it is time to call `evaluate`.
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
        """Move the queued rows into the window, and return the sums over it, or None if the window is empty.

        The sums are also stored in `tally`. Concurrent calls are not allowed.
        """
        arrived = self.arrived
        # Only as many as there are now: requests add to the other end meanwhile.
        waiting = [self.waiting.popleft() for _ in range(len(self.waiting))]
        self.waiting_rows = 0
        if waiting:
            tally = Tally.from_requests(self.reference, self.retained, waiting, self.loaded.clipped_share)
            self._merge_rows(WindowGeneration(arrived, tally))
            tallies = [generation.tally for generation in self.generations]
            self.tally = sum(tallies[1:], start=tallies[0])
        return self.tally

    def _merge_rows(self, evaluated: WindowGeneration) -> None:
        """Add evaluated rows to the younger of the window's two generations, or begin a new one if it is full.

        The oldest generation is then dropped. Rows are never split: a generation may end with more than `size` rows.
        """
        if self.generations and (younger := self.generations[-1]).tally.rows < self.size:
            younger.tally += evaluated.tally
        else:
            self.generations = [*self.generations[-1:], evaluated]

    @property
    def since(self) -> float:
        """Time of the window's first row in seconds since 1970.

        The current time if there is no row.
        """
        return self.generations[0].since if self.generations else time.time()


def _sample_rows(rows: Rows) -> Rows:
    """Return `ROWS_PER_REQUEST` rows, or an eighth if that is more, evenly spaced from a random start.

    All rows are returned if there are fewer.
    """
    if len(rows) <= ROWS_PER_REQUEST:
        return rows
    count = max(ROWS_PER_REQUEST, len(rows) // SAMPLED_PART)
    chosen: Rows = rows[((random.random() + np.arange(count)) * (len(rows) / count)).astype(int)]
    return chosen
