"""The job of a fit."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lathe.service.chains.fits import FitSetting, run_fit, wait_for_redis
from lathe.service.home import Home
from lathe.service.jobs.store import locate_inputs
from lathe.service.registries import open_registry
from lathe.service.settings import Settings
from lathe.training.encoder.opening import open_encoder
from lathe.transforms.progress import Progress, part_of

if TYPE_CHECKING:
    from lathe.service.jobs.requests import FitJob

VECTORS = "vectors.npy"
"""Name of the result file with the transformed vectors of the source."""


def run_fit_job(job: "FitJob", folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
    """Run the fit that a job requests and publish the chain. Return the version's name, state and certificate.

    With `transform`, the vectors are written to the job's folder, and the result has their `vectors_url`.

    Returns:
        `{chain: "name@1", promoted, failed_gates, size_routes, certificate}`, and with `transform` also
        `vectors_url`.
    """
    request = locate_inputs(job.request, job.files, folder)
    on_progress(0.0, "loading the encoder")
    encoder, target_encoder = (
        open_encoder(spec, settings.device, settings.vector_stores) if spec else None
        for spec in (job.encoder, job.target_encoder)
    )
    home = Home(settings.home)
    registry = wait_for_redis(lambda: open_registry(home, settings.redis_url), part_of(on_progress, 0.0, 0.0))
    context = FitSetting(registry, home.vectors, "POST /fit-transform", encoder, target_encoder, job=folder.name)
    if not request.transform:
        return run_fit(request, context, on_progress)
    result = run_fit(request, context, on_progress, folder / VECTORS)
    return result | {"vectors_url": f"/jobs/{folder.name}/vectors"}
