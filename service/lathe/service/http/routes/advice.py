"""Route that queues advice on vectors as a job."""

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.chains.names import require_name
from lathe.service.errors import BadValueError, NotSupportedError
from lathe.service.http.answers import answer_job
from lathe.service.http.json_body import read_json, validate_json
from lathe.service.http.openapi import ERRORS, describe_body
from lathe.service.http.schemas import AdviseBody
from lathe.service.http.unknown_names import StrictRoute
from lathe.service.jobs.requests import AdviseJob
from lathe.service.jobs.sources import receive, require_distinct
from lathe.service.jobs.store import Job
from lathe.service.services import ADMIN, Services, ServicesDep
from lathe.training.advice.request import AdviceRequest, find_missing_module

router = APIRouter(route_class=StrictRoute, tags=["jobs"], responses=ERRORS)


@router.post("/advise", dependencies=ADMIN, openapi_extra=describe_body(AdviseBody), status_code=202)
async def advise(request: Request, services: ServicesDep) -> Response:
    """Queue a decision in what form to store vectors, as a job.

    Answers 202 with the URL of the job.
    """
    services.require_writable()
    job = await run_in_threadpool(_create_advice_job, services, await read_json(request, services.settings))
    return await answer_job(job.id)


def _create_advice_job(services: Services, json_body: bytes) -> Job:
    """Check the JSON body of an advice request, queue its job with the data sent, and return the job.

    What can be checked before the work begins is checked here, so that the client is told at once.

    Raises:
        NotSupportedError: if the extra `evaluation` is not installed.
        ServiceError, TrainingError: if the body, the name in `fit`, the encoder or the source is not valid, too few
            distinct rows were sent, or an encoder is named for vectors without `fit`.
    """
    body = validate_json(json_body, AdviseBody)
    if module := find_missing_module():
        raise NotSupportedError(f"advice needs {module}: pip install 'lathe-training[evaluation]'")
    if body.fit is not None:
        require_name(body.fit, param="fit")
    engine = services.embedder.find_engine(body.encoder, param="encoder")
    source = receive(body.source, services.settings.data_root)
    require_distinct(source, "advice")

    needs_encoder = source.texts or body.encoder is not None
    if not source.texts and body.encoder is not None and body.fit is None:
        raise BadValueError(
            "the source holds vectors: leave `encoder` out, or name a chain to `fit` for that encoder", param="encoder"
        )

    advice_request = AdviceRequest(
        source=source.path,
        sample_rows=body.sample_rows,
        seed=body.seed,
        place=body.place,
        rows=body.rows,
        metric=body.metric,
        recall=body.recall,
        encoder=body.encoder,
        chain=body.fit,
        evidence=body.evidence,
    )
    spec = engine.spec if needs_encoder else None
    job = AdviseJob(encoder=spec, question=advice_request, fit=body.fit, files=tuple(source.files))
    return services.jobs.submit("advise", job.to_json(), source.files)
