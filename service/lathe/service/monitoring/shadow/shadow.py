"""A shadow: a candidate version of a chain applied besides the live one to a sample of its live rows.

running ── the live pointer moves, or the candidate is deleted ──> ended: no more rows are sampled, figures stay

Rows are vectors, never texts; they and all figures are in the memory of this process only.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.service.chains.loaded_chain import LoadedChain
from lathe.service.chains.registry import Registry
from lathe.service.monitoring.shadow.neighbours import compare_neighbours
from lathe.service.monitoring.shadow.plan import ROWS_READY, ShadowPlan
from lathe.service.monitoring.shadow.reservoir import Reservoir
from lathe.service.monitoring.shadow.side import ShadowSide

BLOCK = 64
"""Rows to which both versions are applied at once: for fewer, the call itself would dominate the time."""

BLOCKS_TIMED = 500
"""Number of latest blocks whose times are kept."""

REPORT_SECONDS = 2.0
"""Maximum age of the figures in a report: callers who may read it must not be able to keep the processor busy."""


class Shadow:
    """The trial of one candidate version.

    Args:
        live: live version.
        candidate: another version of the same chain, for the same vectors.
        plan: configuration.
        rng: random generator for sampling rows.

    Attributes:
        seen: number of rows that went through the live version since the start.
        ended: why no more rows are sampled; None while the shadow runs.
    """

    def __init__(self, live: LoadedChain, candidate: LoadedChain, plan: ShadowPlan, rng: np.random.Generator) -> None:
        self.live, self.candidate = ShadowSide(live), ShadowSide(candidate)
        self.order = [self.live, self.candidate]
        self.plan = plan
        self.rng = rng
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self.seen = self.tried = 0
        self.ended: str | None = None
        self.reservoir: Reservoir | None = None
        self.waiting: list[NDArray[np.float32]] = []
        self.latencies: deque[tuple[float, float]] = deque(maxlen=BLOCKS_TIMED)
        self.changing, self.computing = threading.Lock(), threading.Lock()
        self.known: tuple[int, float, dict[str, Any]] | None = None

    def sample(self, raw: NDArray[np.float32]) -> int:
        """Sample rows `(n, d)` that the live version got: each joins the reservoir with chance `plan.share`.

        Once `BLOCK` sampled rows wait, both versions are applied to them, with their times and problems recorded.

        Rows of other dimensions than the first ones are ignored.

        Returns:
            Number of rows that both versions were applied to in this call.
        """
        with self.changing:
            if self.reservoir is None:
                self.reservoir = Reservoir(self.plan.rows, raw.shape[1], self.rng)
            if raw.shape[1] != self.reservoir.dimensions:  # rows of other dimensions have no neighbours among these
                return 0
            self.seen += len(raw)
            chosen = raw[self.rng.random(len(raw)) < self.plan.share]
            if len(chosen):
                self.reservoir.add(chosen)
                self.waiting.append(chosen)
            if sum(map(len, self.waiting)) < BLOCK:
                return 0
            block, self.waiting = np.concatenate(self.waiting), []
        self._measure(block)
        return len(block)

    def _measure(self, block: NDArray[np.float32]) -> None:
        """Apply both versions to the rows, in an order that alternates by call; count the rows in `tried`.

        Each side counts its own failures and bad outputs. Both times are recorded if neither version failed, else none.
        """
        self.order.reverse()
        times = {side: side.measure(block) for side in self.order}
        self.tried += len(block)
        live, candidate = times[self.live], times[self.candidate]
        if live is not None and candidate is not None:
            self.latencies.append((live, candidate))

    def end_if_over(self, registry: Registry) -> bool:
        """End the shadow if the live pointer moved or the candidate is deleted; return whether this call did so."""
        if self.ended is not None:
            return False
        self.ended = self._find_end_reason(registry)
        return self.ended is not None

    def _find_end_reason(self, registry: Registry) -> str | None:
        """Return why the trial is over, in words; None if the live version and the candidate are still in place."""
        live, candidate = self.live.loaded, self.candidate.loaded
        now = registry.live(live.name)
        if now == candidate.version:
            return f"the candidate {candidate.ref} became live"
        if now != live.version:
            return f"{live.ref} is no longer live: " + (f"{live.name}@{now} is" if now else "no version is")
        return None if candidate.folder.is_dir() else f"the candidate {candidate.ref} was deleted"

    def compute_figures(self, within: float = 0.0) -> dict[str, Any]:
        """Compare the two versions on the sampled rows, and return the figures as JSON.

        They are the number of distinct rows, agreement and recall of nearest neighbours, recall of the candidate
        divided by that of the live version, and latencies. Figures of the same rows, or less than `within` seconds old,
        are reused, except the latencies.
        """
        with self.computing:
            with self.changing:
                taken = 0 if self.reservoir is None else self.reservoir.added
                if self.known and (self.known[0] == taken or time.monotonic() - self.known[1] < within):
                    return self.known[2] | self._summarize_latency()
                raw = np.empty((0, 0), np.float32) if self.reservoir is None else self.reservoir.copy_distinct()
            live, candidate = (side.apply(raw) if len(raw) else None for side in (self.live, self.candidate))
            found = {"rows": len(raw)} | compare_neighbours(raw, live, candidate, self.plan.k)
            recall = found["raw_recall_at_k"]
            found["recall_ratio"] = _divide(recall["candidate"], recall["live"])
            if len(raw):
                self.known = taken, time.monotonic(), found
        return found | self._summarize_latency()

    def _summarize_latency(self) -> dict[str, Any]:
        """Return each version's median milliseconds per 1,000 rows over the latest blocks, and the median ratio."""
        took = np.array(list(self.latencies))
        if not len(took):
            return {"latency_ms": None}
        live, candidate = np.median(took, axis=0)
        paired = float(np.median(took[:, 1] / took[:, 0]))
        return {"latency_ms": {"live": float(live), "candidate": float(candidate), "ratio": paired}}

    def report(self) -> dict[str, Any]:
        """Return the JSON of `GET /chains/{name}/shadow`: versions, rows seen, their figures, gates met or not."""
        figures = self.compute_figures(REPORT_SECONDS)
        live, candidate = self.live.loaded, self.candidate.loaded
        return {
            "chain": live.name,
            "live": live.version,
            "candidate": candidate.version,
            "state": "running" if self.ended is None else "ended",
            "ended": self.ended,
            "started_at": self.started_at,
            "share": self.plan.share,
            "k": self.plan.k,
            "seen": self.seen,
            "tried": self.tried,
            **figures,
            "problems": {"live": self.live.describe_problems(), "candidate": self.candidate.describe_problems()},
            "gates": dict(self.plan.gates),
            **self._judge_gates(figures),
        }

    def _judge_gates(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Return `{verdict, failed_gates}`, with the verdict `no gates`, `not yet`, `failed` or `passed`."""
        if not self.plan.gates:
            return {"verdict": "no gates", "failed_gates": []}
        if figures["rows"] < ROWS_READY:
            return {"verdict": "not yet", "failed_gates": []}
        failed = self.plan.find_failed(select_gate_figures(figures))
        return {"verdict": "failed" if failed else "passed", "failed_gates": failed}


def select_gate_figures(figures: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures that gates can be set on, by gate; None where unknown."""
    agreement, latency = figures["agreement_at_k"], figures["latency_ms"]
    return {
        "agreement_at_k": agreement and agreement["value"],
        "recall_ratio": figures["recall_ratio"],
        "latency_ratio": latency and latency["ratio"],
    }


def _divide(one: Mapping[str, float] | None, other: Mapping[str, float] | None) -> float | None:
    """Return the ratio of two values; None if either is missing or the second is 0."""
    return one["value"] / other["value"] if one and other and other["value"] else None
