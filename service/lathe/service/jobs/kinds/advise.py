"""The run of an advice request, and of the fit that may follow: shared by `lathe advise` and `POST /advise`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lathe.service.chains.fits import FitContext, run_fit
from lathe.service.home import Home
from lathe.service.registries import open_registry
from lathe.service.settings import Settings
from lathe.training.advice.request import AdviceRequest
from lathe.training.encoder.opening import open_encoder
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import AdviceError, TrainingError
from lathe.training.fitting.requests import NewFit, RowSource
from lathe.training.sources.local import RootedFile
from lathe.transforms.chain import parse_steps
from lathe.transforms.errors import TransformError
from lathe.transforms.files import write_synced
from lathe.transforms.progress import Progress, part_of

if TYPE_CHECKING:
    from lathe.service.jobs.requests import AdviseJob
    from lathe.training.advice.advise import Advice

REPORT = "report.html"
ADVICE_SHARE = 0.6
"""Share of the progress bar that the advice takes in a job that then fits; the fit takes the rest."""


def fit_recommended(
    found: "Advice",
    name: str,
    question: AdviceRequest,
    encoder: TextEncoder | None,
    settings: Settings,
    on_progress: Progress,
    command: str,
    job: str | None = None,
) -> dict[str, Any]:
    """Fit the recommended chain on the whole source, add it to the registry, and return the summary of `run_fit`.

    Raises:
        AdviceError: if no chain is recommended, because there are too few rows or the raw vectors are best.
        TrainingError, TransformError: if the chain cannot be fitted.
    """
    if found.best is None:
        raise AdviceError("nothing was fitted: no chain is recommended, there are too few rows")
    adapter = [found.adapter.steps] if found.adapter and found.adapter.recommended else []
    written = ",".join([*adapter, *([found.best.steps] if found.best.steps else [])])
    if not written:
        raise AdviceError("nothing was fitted: no chain is recommended, the raw vectors are best")
    home = Home(settings.home)
    registry = open_registry(home, settings.redis_url)
    steps = [step.spec() for step in parse_steps(written)]
    pairs = question.pairs if adapter else None
    request = NewFit(name=name, steps=steps, source=RowSource(path=question.source), seed=question.seed, pairs=pairs)
    return run_fit(request, FitContext(registry, home.vectors, command, encoder, job=job), on_progress)


def run_advice_job(asked: "AdviseJob", folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
    """Run an advice job: write `report.html` to its folder, and return the advice as JSON with the fit, if asked for.

    Runs in the job's process. If the fit fails, the advice is returned all the same, with `fit` None and the reason in
    `fit_error`.
    """
    from lathe.training.advice.advise import advise
    from lathe.training.advice.report import render_html, to_json

    question = asked.question
    if question.source in asked.files:
        question = replace(question, source=str(RootedFile(folder, question.source)))
    home, name = Home(settings.home), asked.fit
    share = ADVICE_SHARE if name else 1.0
    on_progress(0.0, "loading the encoder")
    encoder = open_encoder(asked.encoder, settings.device, settings.vector_stores) if asked.encoder else None
    found = advise(question, encoder, home.vectors, part_of(on_progress, 0.0, share))
    write_synced(folder / REPORT, render_html(found).encode())
    result = to_json(found) | {"report_url": f"/jobs/{folder.name}/report"}
    if name:
        fitting = part_of(on_progress, share, 1.0)
        try:
            result["fit"] = fit_recommended(
                found, name, question, encoder, settings, fitting, "POST /advise", folder.name
            )
        except (TrainingError, TransformError) as error:  # the advice holds all the same
            result |= {"fit": None, "fit_error": str(error)}
    return result
