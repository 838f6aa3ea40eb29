"""Jobs that fit chains or decide what to store: a fit, advice with the fit that may follow, and a migration."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lathe.service.chains.fits import FitContext, run_fit
from lathe.service.home import Home
from lathe.service.jobs.job import REPORT, VECTORS
from lathe.service.jobs.sources import locate_inputs
from lathe.service.registries import open_registry
from lathe.service.settings import Settings
from lathe.service.waiting import wait_for_redis
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import TrainingError
from lathe.transforms.errors import TransformError
from lathe.transforms.files import write_synced
from lathe.transforms.progress import Progress, part_of

if TYPE_CHECKING:
    from lathe.service.jobs.requests import AdviseJob, FitJob, MigrateJob
    from lathe.training.encoder.text_encoder import TextEncoder

ADVICE_SHARE = 0.6
"""Share of the progress bar that the advice takes in a job that then fits; the fit takes the rest."""


def run_fit_job(job: "FitJob", folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
    """Run the fit that a job requests and publish the chain.

    Returns the dict of `run_fit`. With `transform`, the source's vectors, transformed by the chain, are written to the
    job's folder, and the result also has their `vectors_url`.
    """
    request = locate_inputs(job.request, job.files, folder)
    on_progress(0.0, "loading the encoder")
    encoder, target_encoder = _open_encoder(job.encoder, settings), _open_encoder(job.target_encoder, settings)
    home = Home(settings.home)
    registry = wait_for_redis(lambda: open_registry(home, settings.redis_url), part_of(on_progress, 0.0, 0.0))
    context = FitContext(registry, home.vectors, "POST /fit-transform", encoder, target_encoder, job=folder.name)
    if not request.transform:
        return run_fit(request, context, on_progress)
    result = run_fit(request, context, on_progress, folder / VECTORS)
    return result | {"vectors_url": f"/jobs/{folder.name}/vectors"}


def run_advice_job(job: "AdviseJob", folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
    """Advise in what form to store a source's vectors, write `report.html` to the folder, and return the advice.

    If the request names a chain to fit, the decision's chain is fitted too, and its result is under `fit`. If that
    fails, the advice is returned all the same, with `fit` None and the reason in `fit_error`.
    """
    from lathe.training.advice.advise import advise, build_recommended_fit
    from lathe.training.advice.report import render_html, to_json

    request = locate_inputs(job.request, job.files, folder)
    home, name = Home(settings.home), request.fit
    share = ADVICE_SHARE if name else 1.0
    on_progress(0.0, "loading the encoder")
    encoder = _open_encoder(job.encoder, settings)
    advice = advise(request, encoder, part_of(on_progress, 0.0, share))
    write_synced(folder / REPORT, render_html(advice).encode())
    result = to_json(advice) | {"report_url": f"/jobs/{folder.name}/report"}
    if name:
        fitting = part_of(on_progress, share, 1.0)
        try:
            registry = open_registry(home, settings.redis_url)
            context = FitContext(registry, home.vectors, "POST /advise", encoder, job=folder.name)
            result["fit"] = run_fit(build_recommended_fit(advice, name, request), context, fitting)
        except (TrainingError, TransformError) as error:  # the advice holds all the same
            result |= {"fit": None, "fit_error": str(error)}
    return result


def run_migrate_job(job: "MigrateJob", folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
    """Decide whether another encoder is worth it, and return the decision as JSON."""
    from lathe.training.deciding.migrate import decide_migration
    from lathe.training.encoder.opening import open_encoder

    request = locate_inputs(job.request, job.files, folder)
    on_progress(0.0, "loading the encoders")
    present, new = (open_encoder(spec, settings.device, settings.vector_stores) for spec in (job.encoder, job.new))
    return decide_migration(request, present, new, on_progress).to_json()


def _open_encoder(spec: EncoderSpec | None, settings: Settings) -> "TextEncoder | None":
    if spec is None:
        return None
    from lathe.training.encoder.opening import open_encoder

    return open_encoder(spec, settings.device, settings.vector_stores)
