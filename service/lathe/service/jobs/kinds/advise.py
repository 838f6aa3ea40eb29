"""The run of an advice request, and of the fit that may follow: shared by `lathe advise` and `POST /advise`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lathe.service.chains.fits import FitSetting, run_fit
from lathe.service.home import Home
from lathe.service.jobs.store import locate_inputs
from lathe.service.registries import open_registry
from lathe.service.settings import Settings
from lathe.training.encoder.opening import open_encoder
from lathe.training.errors import TrainingError
from lathe.transforms.errors import TransformError
from lathe.transforms.files import write_synced
from lathe.transforms.progress import Progress, part_of

if TYPE_CHECKING:
    from lathe.service.jobs.requests import AdviseJob

REPORT = "report.html"
ADVICE_SHARE = 0.6
"""Share of the progress bar that the advice takes in a job that then fits; the fit takes the rest."""


def run_advice_job(job: "AdviseJob", folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
    """Advise on a source's embeddings, and return the advice as JSON. Also write `report.html` to the folder.

    Runs in the job's process. If the request names a chain to fit, the decision's chain is fitted too, and its
    result is under `fit`. If that fails, the advice is returned all the same, with `fit` None and the reason in
    `fit_error`.
    """
    from lathe.training.advice.advise import advise, build_recommended_fit
    from lathe.training.advice.report import render_html, to_json

    request = locate_inputs(job.request, job.files, folder)
    home, name = Home(settings.home), request.fit
    share = ADVICE_SHARE if name else 1.0
    on_progress(0.0, "loading the encoder")
    encoder = open_encoder(job.encoder, settings.device, settings.vector_stores) if job.encoder else None
    advice = advise(request, encoder, part_of(on_progress, 0.0, share))
    write_synced(folder / REPORT, render_html(advice).encode())
    result = to_json(advice) | {"report_url": f"/jobs/{folder.name}/report"}
    if name:
        fitting = part_of(on_progress, share, 1.0)
        try:
            registry = open_registry(home, settings.redis_url)
            context = FitSetting(registry, home.vectors, "POST /advise", encoder, job=folder.name)
            result["fit"] = run_fit(build_recommended_fit(advice, name, request), context, fitting)
        except (TrainingError, TransformError) as error:  # the advice holds all the same
            result |= {"fit": None, "fit_error": str(error)}
    return result
