"""Training of encoders, as jobs."""

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.encoders.training import require_free_name, require_trainable
from lathe.service.errors import UnknownNameError
from lathe.service.http.answers import answer_job
from lathe.service.http.json_body import read_json, validate_json
from lathe.service.http.openapi import ERRORS, describe_body
from lathe.service.http.unknown_names import StrictRoute
from lathe.service.jobs.requests import TrainJob
from lathe.service.jobs.sources import locate_data_sets
from lathe.service.jobs.store import Job
from lathe.service.services import ADMIN, Services, ServicesDep
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.finetuning.requests import NewTraining

router = APIRouter(route_class=StrictRoute, tags=["jobs"], responses=ERRORS)


@router.post("/train", dependencies=ADMIN, openapi_extra=describe_body(NewTraining), status_code=202)
async def train(request: Request, services: ServicesDep) -> Response:
    """Queue the training of an encoder, whose result is the next version of a name.

    Answers 202 with the URL of the job.
    """
    services.require_writable()
    job = await run_in_threadpool(_create_train_job, services, await read_json(request, services.settings))
    return await answer_job(job.id)


def _create_train_job(services: Services, json_body: bytes) -> Job:
    """Check the request for a training as far as possible, queue its job, and return the job."""
    request = validate_json(json_body, NewTraining)
    require_free_name(request.name, services.settings)
    request.check()
    located = locate_data_sets(request.job, services.settings.data_root)
    request = request.model_copy(update={"job": located})

    job = request.check()
    base = _find_encoder(services, job.encoder, "job.encoder")
    require_trainable(base)
    mining = job.negatives.model if job.negatives else None
    auxiliary = _find_encoder(services, mining, "job.negatives.model")
    return services.jobs.submit("train", TrainJob(encoder=base, auxiliary=auxiliary, request=request).to_json(), {})


def _find_encoder(services: Services, name: str | None, field: str) -> EncoderSpec:
    """Return the spec of an encoder that the server knows. No folder or hub id is taken from a request."""
    if name is None:
        return services.embedder.default.spec
    spec = services.settings.find_encoder_spec(name)
    if spec is None:
        known = ", ".join(spec.name for spec in services.settings.specs)
        raise UnknownNameError(f"there is no encoder {name[:80]!r}; there are: {known}", param=field)
    return spec
