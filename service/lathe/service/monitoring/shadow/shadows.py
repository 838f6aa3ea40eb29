"""The shadows of a server, at most one per chain; other processes have their own."""

import logging
import threading

import numpy as np
from prometheus_client import Counter, Gauge

from lathe.service.chains.gates import FailedGate
from lathe.service.chains.loaded_chain import LoadedChain
from lathe.service.chains.registry import Registry
from lathe.service.encoders.observer import ObservedVectors, Observers
from lathe.service.errors import ConflictError, UnknownNameError
from lathe.service.monitoring.shadow.plan import ROWS_READY, UPPER_BOUND_GATES, ShadowPlan
from lathe.service.monitoring.shadow.shadow import Shadow, select_gate_figures

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
        observers: source of the raw rows of live requests.
    """

    def __init__(self, registry: Registry, observers: Observers) -> None:
        self.registry = registry
        self.observers = observers
        self.shadows: dict[str, Shadow] = {}
        self.changing = threading.Lock()
        self.observing = False

    def start(self, name: str, version: int, plan: ShadowPlan) -> Shadow:
        """Start a shadow: apply a version beside the live one to live traffic, to compare them; return it.

        A running shadow of the same chain ends.

        Args:
            name: name of the chain.
            version: the candidate version.
            plan: share of the traffic that is compared, and gates: limits that the figures must meet for a promotion.

        Raises:
            BadValueError: if a gate limits a figure that shadows do not measure.
            UnknownNameError: if there is no such chain or version, or none is live.
            ConflictError: if the version is live, or takes other vectors than the live one.
            ArtifactError: if one of the versions is damaged.
        """
        plan.require_gates()
        self.registry.require_known(name)
        live, candidate = self.registry.load(name), self.registry.load(f"{name}@{version}")
        require_comparable(live, candidate)
        shadow = Shadow(live, candidate, plan, np.random.default_rng())
        self.replace_shadow(name, shadow)
        return shadow

    def stop(self, name: str) -> None:
        """End and remove a chain's shadow; raise `UnknownNameError` if there is none."""
        self.get(name)
        self.replace_shadow(name, None)

    def get(self, name: str) -> Shadow:
        """Return a chain's shadow, ended first if its versions changed.

        Raises:
            UnknownNameError: if there is no such chain, or it has no shadow.
        """
        shadow = self.shadows.get(name)
        if shadow is None:
            self.registry.require_known(name)
            raise UnknownNameError(f"the chain {name} has no shadow", param="name")
        self._end_if_over(shadow)
        return shadow

    def get_candidate_version(self, name: str) -> int | None:
        """Return the candidate version of a chain's shadow, running or ended; None if there is none."""
        shadow = self.shadows.get(name)
        return None if shadow is None else shadow.candidate.loaded.version

    def replace_shadow(self, name: str, shadow: Shadow | None) -> None:
        """Replace a chain's shadow, or remove it if None, and start or stop observing accordingly."""
        with self.changing:
            others = {other: kept for other, kept in self.shadows.items() if other != name}
            self.shadows = others if shadow is None else others | {name: shadow}
        self._update_observation()

    def _update_observation(self) -> None:
        """Observe live traffic if a shadow runs; stop observing if none does."""
        with self.changing:
            needed = any(shadow.ended is None for shadow in self.shadows.values())
            if needed and not self.observing:
                self.observers.add(self.observe)
            elif self.observing and not needed:
                self.observers.remove(self.observe)
            self.observing = needed

    def _end_if_over(self, shadow: Shadow) -> None:
        """End a shadow, and log it, if its live version or candidate changed; stop observing if no other runs."""
        if shadow.end_if_over(self.registry):
            log.info("a shadow ended", extra={"chain": shadow.live.loaded.name, "why": shadow.ended})
            self._update_observation()

    def observe(self, seen: ObservedVectors) -> None:
        """Pass a request's rows to the running shadow of their live version; ignore them if there is none.

        The shadow is ended first if its versions changed. The metrics count the rows that both versions were tried on,
        and those that the candidate failed on. Called in the observer thread.
        """
        name = seen.loaded.name
        shadow = self.shadows.get(name)
        if shadow is None or seen.loaded.version != shadow.live.loaded.version:
            return
        self._end_if_over(shadow)
        if shadow.ended is None:
            before = shadow.candidate.bad_rows
            TRIED.labels(name).inc(shadow.sample(seen.raw))
            TROUBLED.labels(name).inc(shadow.candidate.bad_rows - before)

    def find_failed_gates(self, name: str, version: int) -> list[FailedGate]:
        """List the gates that the version fails in its running shadow; empty if there is no such shadow.

        With too few rows to judge, the list has one entry that says so.
        """
        shadow = self.shadows.get(name)
        if shadow is None or shadow.candidate.loaded.version != version:
            return []
        self._end_if_over(shadow)
        if shadow.ended is not None or not shadow.plan.gates:
            return []
        figures = shadow.compute_figures()
        if figures["rows"] < ROWS_READY:
            return [FailedGate("shadow.rows", ROWS_READY, figures["rows"], False, "its shadow has too few rows yet")]
        values = select_gate_figures(figures)
        return [
            FailedGate(
                f"shadow.{gate}", shadow.plan.gates[gate], values[gate], gate in UPPER_BOUND_GATES, "set by its shadow"
            )
            for gate in shadow.plan.find_failed(values)
        ]

    def update_gauges(self) -> None:
        """End shadows whose versions changed, set the Prometheus gauges of the running ones, and clear all others."""
        for gauge in FIGURES.values():
            gauge.clear()
        for name, shadow in self.shadows.items():
            self._end_if_over(shadow)
            if shadow.ended is None:
                values = select_gate_figures(shadow.compute_figures(SCRAPE_SECONDS))
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
            f"{candidate.ref} takes vectors of another space (encoder {theirs[0]}, {theirs[1]} dimensions) "
            f"than {live.ref} (encoder {mine[0]}, {mine[1]} dimensions)",
            param="version",
            code="space_mismatch",
        )
