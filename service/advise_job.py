"""Advice from question to result, and on to a fitted chain: what `lathe advise` and `POST /advise` share."""

from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.fit_job import run_fit
from service.home import Home
from service.settings import Settings
from service.starters import open_registry
from training.advice.question import Question
from training.encoder.encoder import Encoder
from training.encoder.spec import EncoderSpec
from training.errors import AdviceError, TrainingError
from training.fitting.fit_request import FitRequest
from training.sources.local import RootedFile
from transforms.chain import parse_steps
from transforms.errors import TransformError
from transforms.files import write_synced
from transforms.progress import Progress, part_of

if TYPE_CHECKING:
    from service.jobs.requests import AdviseJob
    from training.advice.advise import Advice

REPORT = "report.html"
ADVISING = 0.6
"""Share of a job that advises and then fits."""


def fit_advised(
    found: "Advice",
    name: str,
    question: Question,
    encoder: Encoder | None,
    settings: Settings,
    on_progress: Progress,
    command: str,
    job: str | None = None,
) -> dict[str, Any]:
    """Fit what was recommended on the whole source, and register it; see `run_fit`.

    Raises:
        AdviceError: if no chain was recommended.
        TrainingError, TransformError: if it cannot be fitted.
    """
    if found.best is None:
        raise AdviceError("nothing was fitted: no chain is recommended, there are too few rows to tell")
    if not found.best.steps:
        raise AdviceError("nothing was fitted: no chain is recommended, the vectors are best left as they are")
    home = Home(settings.home)
    registry, places = open_registry(home, settings.redis_url)
    steps = [step.spec() for step in parse_steps(found.best.steps)]
    request = FitRequest(name, steps, question.source, seed=question.seed)
    return run_fit(request, encoder, registry, places, home.vectors, on_progress, command, job=job)


def job_request(
    question: Question, encoder: EncoderSpec | None, fit: str | None, files: Collection[str]
) -> dict[str, Any]:
    """A question as the JSON that its job reads."""
    return {
        "question": asdict(question),
        "encoder": asdict(encoder) if encoder else None,
        "fit": fit,
        "files": list(files),
    }


def run_advise_request(asked: "AdviseJob", folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
    """Give the advice that a job asks for, in the job's process."""
    from training.advice.advise import advise
    from training.advice.report import as_json, as_page

    question = asked.question
    if question.source in asked.files:
        question = replace(question, source=str(RootedFile(folder, question.source)))
    home, name = Home(settings.home), asked.fit
    share = ADVISING if name else 1.0
    on_progress(0.0, "loading the encoder")
    encoder = Encoder(asked.encoder, settings.device) if asked.encoder else None
    found = advise(question, encoder, home.vectors, part_of(on_progress, 0.0, share))
    write_synced(folder / REPORT, as_page(found).encode())
    result = as_json(found) | {"report_url": f"/jobs/{folder.name}/report"}
    if name:
        fitting = part_of(on_progress, share, 1.0)
        try:
            result["fit"] = fit_advised(found, name, question, encoder, settings, fitting, "POST /advise", folder.name)
        except (TrainingError, TransformError) as error:  # the advice holds all the same
            result |= {"fit": None, "fit_error": str(error)}
    return result
