"""Route that queues an adaptation to judged searches as a job."""

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.chains.names import require_name
from lathe.service.encoders.training import require_free_name
from lathe.service.http.answers import answer_job
from lathe.service.http.json_body import read_json, validate_json
from lathe.service.http.openapi import ERRORS, describe_body
from lathe.service.http.queueing import PAIR_FILES, require_pairs, store_pairs
from lathe.service.http.unknown_names import StrictRoute
from lathe.service.jobs.requests import AdaptJob
from lathe.service.jobs.sources import receive, require_distinct, resolve_allowed_folder
from lathe.service.jobs.store import Job
from lathe.service.services import ADMIN, Services, ServicesDep
from lathe.training.adaptation.request import AdaptRequest

router = APIRouter(route_class=StrictRoute, tags=["jobs"], responses=ERRORS)


@router.post("/adapt", dependencies=ADMIN, openapi_extra=describe_body(AdaptRequest), status_code=202)
async def adapt(request: Request, services: ServicesDep) -> Response:
    """Queue the trial of what judged searches can improve, from a map of queries to a trained encoder.

    Answers 202 with the URL of the job, which recommends one change, and publishes it if the request has a name.
    """
    services.require_writable()
    job = await run_in_threadpool(_create_adapt_job, services, await read_json(request, services.settings))
    return await answer_job(job.id)


def _create_adapt_job(services: Services, json_body: bytes) -> Job:
    """Check the JSON body of an adaptation, queue its job with the data sent, and return the job."""
    request = validate_json(json_body, AdaptRequest)
    request.check()
    if request.name is not None:
        require_name(request.name)
        if request.train:
            require_free_name(request.name, services.settings)
    require_pairs(request.pairs, request.test_pairs)

    data_root = services.settings.data_root
    engine = services.embedder.find_engine(request.encoder, param="encoder")
    source = receive(request.source, data_root)
    require_distinct(source, "an adaptation")
    paths = {"source": source.path}
    for field in PAIR_FILES:
        if (pairs := getattr(request, field)) is not None:
            paths[field] = store_pairs(field, pairs, source.files, data_root)
    folders = [resolve_allowed_folder(folder, data_root, "folders") for folder in request.folders]
    located = request.with_paths(paths).model_copy(update={"folders": folders})
    job = AdaptJob(encoder=engine.spec, request=located, files=tuple(source.files))
    return services.jobs.submit("adapt", job.to_json(), source.files)
