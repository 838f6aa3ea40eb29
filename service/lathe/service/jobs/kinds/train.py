"""The job of a training."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lathe.service.chains.fits import wait_for_redis
from lathe.service.encoders.training import TrainingSetting, require_free_name, train_encoder
from lathe.service.home import Home
from lathe.service.jobs.sources import locate_data_sets
from lathe.service.jobs.store import TrainingLog
from lathe.service.registries import open_trained
from lathe.service.settings import Settings
from lathe.transforms.progress import Progress, part_of

if TYPE_CHECKING:
    from lathe.service.jobs.requests import TrainJob


def run_train_job(job: "TrainJob", folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
    """Train the encoder that a job requests, and publish it. Return the version's name, state and certificate.

    The training log is copied to the job's folder each time it grows.

    Returns:
        The dict that `train_encoder` returns, with `log_url`.
    """
    home = Home(settings.home)
    require_free_name(job.request.name, settings)
    job.request.check()
    # A link may have appeared since the request came.
    request = job.request.model_copy(update={"job": locate_data_sets(job.request.job, settings.data_root)})
    log = TrainingLog(folder)
    context = TrainingSetting(
        wait_for_redis(lambda: open_trained(home, settings.redis_url, [request.name]), part_of(on_progress, 0.0, 0.0)),
        home.training,
        "POST /train",
        job.encoder,
        job.auxiliary,
        settings,
        job=folder.name,
        on_work_folder=log.watch,
    )
    return train_encoder(request, context, log.follow(on_progress)) | {"log_url": f"/jobs/{folder.name}/log"}
