"""The shadows of a server, at most one per chain; other processes have their own."""

import logging
import threading

import numpy as np
from prometheus_client import Counter, Gauge

from service.errors import ConflictError, UnknownNameError
from service.gates import Miss
from service.live.plan import LITTLE, ROWS_READY, Plan
from service.live.shadow import Shadow, gated
from service.live.tap import Seen, Tap
from service.registry import LoadedChain, Registry

TRIED = Counter("lathe_shadow_rows", "Rows both versions were tried on", ["chain"])
TROUBLED = Counter("lathe_shadow_troubled_rows", "Rows a candidate failed on, or gave no number for", ["chain"])
LABELS = ["chain", "candidate"]
FIGURES = {
    "agreement_at_k": Gauge("lathe_shadow_agreement", "Share of neighbours that both versions have", LABELS),
    "recall_ratio": Gauge("lathe_shadow_recall_ratio", "Raw neighbours found, candidate to live version", LABELS),
    "latency_ratio": Gauge("lathe_shadow_latency_ratio", "Time for the same rows, candidate to live version", LABELS),
}
"""Gauges by the name of the gate on the same figure."""

SCRAPE_SECONDS = 60.0
"""Maximum age of the figures in a scrape; computing them takes a second for a shadow with many rows."""

log = logging.getLogger(__name__)


class Shadows:
    """Starts, feeds and ends shadows; observes live traffic only while one runs.

    Args:
        registry: registry of the versions.
        tap: source of the raw rows of live requests.
    """

    def __init__(self, registry: Registry, tap: Tap) -> None:
        self.registry = registry
        self.tap = tap
        self.shadows: dict[str, Shadow] = {}
        self.changing = threading.Lock()
        self.watching = False

    def start(self, name: str, version: int, plan: Plan) -> Shadow:
        """Start a shadow of a version, in place of any other of that chain, and return it.

        Raises:
            BadValueError: if a gate is not one that shadows measure.
            UnknownNameError: if there is no such chain or version, or none is live.
            ConflictError: if the version is live, or takes other vectors than the live one.
            ArtifactError: if one of the versions is damaged.
        """
        plan.require_gates()
        self.registry.require_known(name)
        live, candidate = self.registry.load(name), self.registry.load(f"{name}@{version}")
        require_comparable(live, candidate)
        shadow = Shadow(live, candidate, plan, np.random.default_rng())
        self.keep(name, shadow)
        return shadow

    def stop(self, name: str) -> None:
        """End and remove a chain's shadow; raise `UnknownNameError` if there is none."""
        self.of(name)
        self.keep(name, None)

    def of(self, name: str) -> Shadow:
        """Return a chain's shadow, ended first if its versions changed.

        Raises:
            UnknownNameError: if there is no such chain, or it has no shadow.
        """
        shadow = self.shadows.get(name)
        if shadow is None:
            self.registry.require_known(name)
            raise UnknownNameError(f"the chain {name} has no shadow", param="name")
        self.end_if_over(shadow)
        return shadow

    def candidate(self, name: str) -> int | None:
        """Return the candidate version of a chain's shadow, running or ended; None if there is none."""
        shadow = self.shadows.get(name)
        return None if shadow is None else shadow.candidate.loaded.version

    def keep(self, name: str, shadow: Shadow | None) -> None:
        """Replace a chain's shadow, or remove it if None, and start or stop observing accordingly."""
        with self.changing:
            others = {other: kept for other, kept in self.shadows.items() if other != name}
            self.shadows = others if shadow is None else others | {name: shadow}
        self.watch_if_needed()

    def watch_if_needed(self) -> None:
        """Observe live traffic if a shadow runs; stop observing if none does."""
        with self.changing:
            needed = any(shadow.ended is None for shadow in self.shadows.values())
            if needed and not self.watching:
                self.tap.watch(self.look)
            elif self.watching and not needed:
                self.tap.unwatch(self.look)
            self.watching = needed

    def end_if_over(self, shadow: Shadow) -> None:
        """End a shadow, and log it, if its live version or candidate changed."""
        if shadow.end_if_over(self.registry):
            log.info("a shadow ended", extra={"chain": shadow.live.loaded.name, "why": shadow.ended})
            self.watch_if_needed()

    def look(self, seen: Seen) -> None:
        """Pass the rows of a request to the shadow of their version, and count them; called in the observer thread."""
        name = seen.loaded.name
        shadow = self.shadows.get(name)
        if shadow is None or seen.loaded.version != shadow.live.loaded.version:
            return
        self.end_if_over(shadow)
        if shadow.ended is None:
            before = shadow.candidate.troubled
            TRIED.labels(name).inc(shadow.take(seen.raw))
            TROUBLED.labels(name).inc(shadow.candidate.troubled - before)

    def missed(self, name: str, version: int) -> list[Miss]:
        """List the gates that the version fails in its running shadow; empty if there is no such shadow.

        With too few rows to judge, the list has one entry that says so.
        """
        shadow = self.shadows.get(name)
        if shadow is None or shadow.candidate.loaded.version != version:
            return []
        self.end_if_over(shadow)
        if shadow.ended is not None or not shadow.plan.gates:
            return []
        figures = shadow.figures()
        if figures["rows"] < ROWS_READY:
            return [Miss("shadow.rows", ROWS_READY, figures["rows"], False, "its shadow cannot tell yet")]
        values = gated(figures)
        return [
            Miss(f"shadow.{gate}", shadow.plan.gates[gate], values[gate], gate in LITTLE, "set by its shadow")
            for gate in shadow.plan.failed(values)
        ]

    def measure(self) -> None:
        """Set the Prometheus gauges of the running shadows, and clear those of others."""
        for gauge in FIGURES.values():
            gauge.clear()
        for name, shadow in self.shadows.items():
            self.end_if_over(shadow)
            if shadow.ended is None:
                values = gated(shadow.figures(SCRAPE_SECONDS))
                for measure, value in values.items():
                    if value is not None:
                        FIGURES[measure].labels(name, shadow.candidate.loaded.ref).set(value)


def require_comparable(live: LoadedChain, candidate: LoadedChain) -> None:
    """Raise `ConflictError` if the candidate is live, or does not take the live version's vectors."""
    if live.version == candidate.version:
        raise ConflictError(f"{candidate.ref} is live: there is nothing to compare it to", param="version")
    mine, theirs = (
        (loaded.encoder_fingerprint or "unnamed", loaded.chain.input_dimensions) for loaded in (live, candidate)
    )
    if mine != theirs:
        raise ConflictError(
            f"{candidate.ref} takes vectors of another space (encoder {theirs[0]}, {theirs[1]} wide) than {live.ref} "
            f"(encoder {mine[0]}, {mine[1]} wide)",
            param="version",
            code="space_mismatch",
        )
