"""Advice on vectors, as a job."""

from importlib.util import find_spec

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.advise_job import job_request
from service.answers import ERRORS, job_answer
from service.bodies import AdviseBody, declared, read_json
from service.errors import BadValueError, NotSupportedError
from service.jobs.sources import receive, require_distinct
from service.jobs.store import Job
from service.names import require_name
from service.services import ADMIN, Services, ServicesDep
from training.advice.request import AdviceRequest

router = APIRouter(tags=["jobs"], responses=ERRORS)


@router.post("/advise", dependencies=ADMIN, openapi_extra=declared(AdviseBody), status_code=202)
async def advise(request: Request, services: ServicesDep) -> Response:
    """Queue the question what to do to these vectors; 202 with where to watch it."""
    services.require_writable()
    body = await read_json(request, services.settings, AdviseBody)
    job = await run_in_threadpool(create_job, body, services)
    return await job_answer(job.id)


def create_job(body: AdviseBody, services: Services) -> Job:
    """Check all that can be checked before work begins, then queue the job.

    Raises:
        ServiceError, TrainingError: for what could only fail later.
    """
    if find_spec("matplotlib") is None:
        raise NotSupportedError("advice needs statistics and pictures: pip install 'lathe[evaluation]'")
    if body.fit is not None:
        require_name(body.fit, param="fit")
    engine = services.embedder.engine(body.encoder, param="encoder")
    sent = receive(body.source, services.settings.data_root)
    require_distinct(sent, "advice")
    needed = sent.texts or body.encoder is not None
    if not sent.texts and body.encoder is not None and body.fit is None:
        raise BadValueError("the source holds vectors: an encoder is only named to fit a chain for it", param="encoder")
    advice_request = AdviceRequest(sent.path, body.keep, body.rows, body.seed)
    content = job_request(advice_request, engine.spec if needed else None, body.fit, sent.files)
    return services.jobs.submit("advise", content, sent.files)
