"""The latest rows that one encoder sent through one version of a chain."""

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.live.drift_tally import Tally
from service.live.tap import DROPPED
from service.registry import LoadedChain
from transforms.artifact import FitDistribution
from transforms.chain import retained_subspace

Rows = NDArray[np.float32]

BLOCK_ROWS = 256
"""Rows looked at together: one by one they would take ten times as long."""

OF_A_REQUEST, PART = 8, 8
"""Rows looked at of one request: so many, or of a large one the eighth part. More would say little more, for they are
alike."""


@dataclass(frozen=True)
class Pace:
    """How many rows are looked at.

    Attributes:
        rows_a_second: once a generation came at once. Of more traffic some requests say as much as all would, and to
            look at all of them costs those whose texts are all in the cache a fiftieth of their time.
        waiting_rows: that wait to be looked at; more are left out.
    """

    rows_a_second: float = 256
    waiting_rows: int = 64 * BLOCK_ROWS


PACE = Pace()


@dataclass
class Generation:
    """Rows that came one after another.

    Attributes:
        since: when the first came, in seconds since 1970.
        tally: their sums.
        rows: themselves, where they are to be kept.
    """

    since: float
    tally: Tally
    rows: list[Rows]


class Window:
    """The last `size` to twice `size` rows, as two generations of which the older leaves when the younger is full.

    Args:
        encoder: by name; None for vectors that callers sent.
        loaded: the version.
        reference: what it was fitted on.
        size: rows of a generation.
        keep_rows: whether the rows themselves are kept.
        pace: how many rows are looked at.
        clock: seconds, by which that pace is kept.
    """

    def __init__(
        self,
        encoder: str | None,
        loaded: LoadedChain,
        reference: FitDistribution,
        size: int,
        keep_rows: bool,
        pace: Pace = PACE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.encoder, self.loaded, self.reference = encoder, loaded, reference
        self.size, self.keep_rows = size, keep_rows
        self.pace, self.clock = pace, clock
        self.kept = retained_subspace(loaded.chain)
        self.generations: list[Generation] = []
        self.waiting: deque[Rows] = deque()
        self.waiting_rows = 0
        self.tally: Tally | None = None
        self.used = clock()
        self.arrived = time.time()
        self.allowed = float(size)

    def take(self, rows: Rows) -> bool:
        """Put some of the rows `(n, d)` of a request with those that wait; whether it is time to look at them.

        Where too many wait already they are left out, and it is high time. Takes microseconds, and no lock: several
        requests may do so at once.
        """
        if rows.shape[1] != self.reference.gaussian.dimensions:
            return False
        if self.waiting_rows >= self.pace.waiting_rows:
            DROPPED.inc(len(rows))
            return True
        now = self.clock()
        allowed = min(self.allowed + self.pace.rows_a_second * (now - self.used), self.size)
        self.used = now
        if allowed < 1:
            self.allowed = allowed
            return False
        if not self.waiting:
            self.arrived = time.time()
        taken = some(rows)
        self.allowed = allowed - len(taken)
        self.waiting.append(taken)
        before = self.waiting_rows
        self.waiting_rows = before + len(taken)
        return self.waiting_rows // BLOCK_ROWS > before // BLOCK_ROWS

    def look(self) -> Tally | None:
        """Look at the rows that wait; the sums over all in the window, None without any. One at a time."""
        arrived = self.arrived
        waiting = [self.waiting.popleft() for _ in range(len(self.waiting))]
        self.waiting_rows = 0
        if waiting:
            tally = Tally.of(self.reference, self.kept, waiting)
            self.add(Generation(arrived, tally, waiting if self.keep_rows else []))
            tallies = [generation.tally for generation in self.generations]
            self.tally = sum(tallies[1:], start=tallies[0])
        return self.tally

    def add(self, more: Generation) -> None:
        """Take some more into the younger generation, or as a new one if that is full."""
        if self.generations and (younger := self.generations[-1]).tally.rows < self.size:
            younger.tally += more.tally
            younger.rows += more.rows
        else:
            self.generations = [*self.generations[-1:], more]

    @property
    def since(self) -> float:
        """When the window began; now, if nothing came yet."""
        return self.generations[0].since if self.generations else time.time()

    def rows(self) -> Rows:
        """The rows that were kept `(n, d)`."""
        return np.concatenate([rows for generation in self.generations for rows in generation.rows])


def some(rows: Rows) -> Rows:
    """`OF_A_REQUEST` rows or the eighth part, spread evenly from a random one on; a copy where not all."""
    if len(rows) <= OF_A_REQUEST:
        return rows
    wanted = max(OF_A_REQUEST, len(rows) // PART)
    chosen: Rows = rows[((random.random() + np.arange(wanted)) * (len(rows) / wanted)).astype(int)]
    return chosen
