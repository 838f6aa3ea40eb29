"""Refits of stale chains on the live rows that made them stale, as versions that are not live until promoted."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from lathe.service.chains.loaded_chain import LoadedChain
from lathe.service.chains.registry import Registry
from lathe.service.codec import dump_npy
from lathe.service.errors import ServiceError
from lathe.service.jobs.inputs import FILE_OF_VECTORS
from lathe.service.jobs.jobs import Jobs
from lathe.service.jobs.kinds.fit import build_fit_job
from lathe.service.jobs.requests import FitJob
from lathe.service.monitoring.drift.tally import Tally
from lathe.service.monitoring.drift.window import Window
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.fitting.fit_request import FitRequest
from lathe.transforms.errors import ArtifactError

MIN_DISTINCT = 1000
"""Minimum number of distinct rows for a refit: one text requested over and over makes a chain stale, but fits none."""

PAUSE_SECONDS = 3600.0
"""Seconds between two decisions on whether to refit a version, so that a failed fit is not repeated sooner."""

log = logging.getLogger(__name__)


class Refits:
    """Submitter of refit jobs: one per version, until the new version is promoted or deleted.

    Args:
        registry: registry of the chains.
        jobs: job manager that runs the fits.
        find_spec: returns the spec of an encoder by name; None if it is not served any more.
        window: minimum rows of a window for a refit.
    """

    def __init__(
        self, registry: Registry, jobs: Jobs, find_spec: Callable[[str], EncoderSpec | None], window: int
    ) -> None:
        self.registry, self.jobs, self.find_spec, self.window = registry, jobs, find_spec, window
        self.decided_at: dict[str, float] = {}

    def refit_if_needed(self, window: Window, tally: Tally) -> None:
        """Submit a refit of a window's version if it is live and has none yet, deciding once an hour; log failures.

        Nothing is submitted with fewer than `window` rows or `MIN_DISTINCT` distinct ones, if the encoder is no longer
        served, or if callers sent the rows as vectors and the version was fitted on an encoder's.
        """
        ref = window.loaded.ref
        paused = time.monotonic() - self.decided_at.get(ref, -PAUSE_SECONDS) < PAUSE_SECONDS
        if paused or tally.rows < self.window or not self.is_same_space(window):
            return
        self.decided_at[ref] = time.monotonic()
        try:
            if self.registry.live(window.loaded.name) == window.loaded.version and not self.has_refit(window.loaded):
                self._submit(window, tally)
        except (ServiceError, ArtifactError, OSError) as error:
            log.error("%s is stale and cannot be refitted: %s", ref, error)

    def is_same_space(self, window: Window) -> bool:
        """Return whether the rows are surely in the version's input space.

        False for vectors that callers sent, whose encoder is unknown, if the version was fitted on an encoder's
        vectors.
        """
        return window.encoder is not None or window.loaded.encoder_fingerprint is None

    def has_refit(self, loaded: LoadedChain) -> bool:
        """Return whether a refit of the version is queued, running, or has made a later version."""
        later = [version for version in self.registry.versions(loaded.name) if version > loaded.version]
        made = [self.registry.manifest(loaded.name, version) for version in later]
        if any((manifest.get("provenance") or {}).get("refit_of") == loaded.ref for manifest in made):
            return True
        asked = [self.jobs.read_request(job.id) for job in self.jobs.list() if job.kind == "fit" and not job.ended]
        return any(isinstance(fit, FitJob) and fit.request.refit_of == loaded.ref for fit in asked)

    def _submit(self, window: Window, tally: Tally) -> None:
        """Submit the refit job with the window's rows, unless the encoder is gone or too few rows are distinct."""
        spec = None if window.encoder is None else self.find_spec(window.encoder)
        if window.encoder is not None and spec is None:
            return
        rows = window.collect_rows()
        if len({row.tobytes() for row in rows}) < MIN_DISTINCT:
            return
        files = {FILE_OF_VECTORS: dump_npy(np.ascontiguousarray(rows))}
        job = self.jobs.submit("fit", build_fit_job(_build_refit_request(window, tally), spec, False, files), files)
        log.warning("%s is stale: job %s refits it", window.loaded.ref, job.id)


def _build_refit_request(window: Window, tally: Tally) -> FitRequest:
    """Build the request to refit a chain on the window's rows, with its gates, as a version that is not promoted.

    If the version stores moments (mean and covariance) of its fitted rows, the window's rows are added to them.
    Otherwise its steps are fitted on the window's rows only.
    """
    loaded, chain = window.loaded, window.loaded.chain
    gates: dict[str, Any] = (chain.metadata.get("provenance") or {}).get("gates") or {}
    adds = bool(chain.metadata.get("moments"))
    since = datetime.fromtimestamp(window.since, UTC).isoformat(timespec="seconds")
    return FitRequest(
        name=loaded.name,
        steps=[] if adds else chain.specs(),
        source=FILE_OF_VECTORS,
        normalize=chain.normalize,
        gates=gates,
        promote=False,
        add_to=loaded.ref if adds else None,
        refit_of=loaded.ref,
        because=f"drift: {tally.rows} rows since {since} had the mean percentile {tally.out_of_domain:.3f} among the "
        f"held-out rows of {loaded.ref}",
    )
