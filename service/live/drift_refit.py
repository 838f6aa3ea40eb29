"""Chains that went stale, fitted anew on the rows that made them so: a version for people to promote."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from service.codec import dump_npy
from service.errors import ServiceError
from service.fit_job import job_request
from service.jobs.jobs import Jobs
from service.jobs.requests import FitJob
from service.jobs.sources import FILE_OF_VECTORS
from service.live.drift_tally import Tally
from service.live.drift_window import Window
from service.registry import LoadedChain, Registry
from training.encoder.spec import EncoderSpec
from training.fitting.fit_request import FitRequest
from transforms.errors import ArtifactError

DISTINCT_LEAST = 1000
"""Rows a fit takes at least: one text asked for again and again is stale traffic, and nothing to fit on."""

PAUSE_SECONDS = 3600.0
"""Between two looks at whether a version is to be fitted anew: a fit that failed is not tried again sooner."""

log = logging.getLogger(__name__)


class Refits:
    """Asks for the fits; one for each version, until the new one is promoted or deleted.

    Args:
        registry: of the chains.
        jobs: take the fit.
        spec_of: how an encoder is loaded, by its name; None for one that is served no more.
        window: rows of a generation; a fit waits until there are so many.
    """

    def __init__(
        self, registry: Registry, jobs: Jobs, spec_of: Callable[[str], EncoderSpec | None], window: int
    ) -> None:
        self.registry, self.jobs, self.spec_of, self.window = registry, jobs, spec_of, window
        self.looked: dict[str, float] = {}

    def consider(self, window: Window, tally: Tally) -> None:
        """Fit the live version of a chain anew on the rows of a window, unless that was done."""
        ref = window.loaded.ref
        paused = time.monotonic() - self.looked.get(ref, -PAUSE_SECONDS) < PAUSE_SECONDS
        if paused or tally.rows < self.window or not self.same_space(window):
            return
        self.looked[ref] = time.monotonic()
        try:
            if self.registry.live(window.loaded.name) == window.loaded.version and not self.asked_for(window.loaded):
                self.submit(window, tally)
        except (ServiceError, ArtifactError, OSError) as error:
            log.error("%s is stale and cannot be fitted anew: %s", ref, error)

    def same_space(self, window: Window) -> bool:
        """Whether the rows are surely of the encoder the version was fitted on: of vectors nobody knows."""
        return window.encoder is not None or window.loaded.encoder_fingerprint is None

    def asked_for(self, loaded: LoadedChain) -> bool:
        """Whether a fit in place of a version waits, runs or has made one."""
        later = [version for version in self.registry.versions(loaded.name) if version > loaded.version]
        made = [self.registry.manifest(loaded.name, version) for version in later]
        if any((manifest.get("provenance") or {}).get("refit_of") == loaded.ref for manifest in made):
            return True
        asked = [self.jobs.request(job.id) for job in self.jobs.list() if job.kind == "fit" and not job.ended]
        return any(isinstance(fit, FitJob) and fit.request.refit_of == loaded.ref for fit in asked)

    def submit(self, window: Window, tally: Tally) -> None:
        """Queue the fit."""
        spec = None if window.encoder is None else self.spec_of(window.encoder)
        if window.encoder is not None and spec is None:
            return
        rows = window.rows()
        if len({row.tobytes() for row in rows}) < DISTINCT_LEAST:
            return
        files = {FILE_OF_VECTORS: dump_npy(np.ascontiguousarray(rows))}
        job = self.jobs.submit("fit", job_request(request_of(window, tally), spec, False, files), files)
        log.warning("%s is stale: job %s fits it anew", window.loaded.ref, job.id)


def request_of(window: Window, tally: Tally) -> FitRequest:
    """The fit of a window's rows; where the version carries moments, of its own rows and these."""
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
