"""The job of an adaptation."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lathe.service.chains.fits import wait_for_redis
from lathe.service.encoders.adaptations import AdaptationSetting, run_adaptation
from lathe.service.home import Home
from lathe.service.jobs.sources import resolve_allowed_folder
from lathe.service.jobs.store import TrainingLog, locate_inputs
from lathe.service.registries import open_registry, open_trained
from lathe.service.settings import Settings
from lathe.training.encoder.opening import open_encoder
from lathe.transforms.progress import Progress, part_of

if TYPE_CHECKING:
    from lathe.service.jobs.requests import AdaptJob


def run_adapt_job(job: "AdaptJob", folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
    """Try what judged searches can improve, and publish what is recommended if the request has a name.

    Returns:
        The dict of `lathe.service.encoders.adaptations.Adaptation.to_json`.
    """
    request = locate_inputs(job.request, job.files, folder)
    for path in request.folders:  # a link may have appeared since the request came
        resolve_allowed_folder(path, settings.data_root, "folders")
    on_progress(0.0, "loading the encoder")
    encoder = open_encoder(job.encoder, settings.device, settings.vector_stores)
    home = Home(settings.home)
    waiting = part_of(on_progress, 0.0, 0.0)
    registry = wait_for_redis(lambda: open_registry(home, settings.redis_url), waiting)
    trained = wait_for_redis(
        lambda: open_trained(home, settings.redis_url, [request.name] if request.name else []), waiting
    )
    log = TrainingLog(folder)
    context = AdaptationSetting(
        settings, registry, trained, home, "POST /adapt", job=folder.name, on_work_folder=log.watch
    )
    return run_adaptation(request, encoder, context, log.follow(on_progress)).to_json()
