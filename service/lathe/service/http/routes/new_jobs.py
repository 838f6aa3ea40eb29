"""Routes that queue jobs: fits, advice on vectors, trainings, adaptations, and decisions between two encoders."""

from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.codec import as_vectors, dump_npy
from lathe.service.encoders.engine.engine import Engine
from lathe.service.errors import BadValueError, ConflictError, NotSupportedError, UnknownNameError
from lathe.service.http.answers import answer_job
from lathe.service.http.json_body import read_json, validate_json
from lathe.service.http.openapi import ERRORS, describe_body
from lathe.service.http.queueing import store_pairs, store_queries
from lathe.service.http.routing import StrictRoute
from lathe.service.jobs.job import FILE_OF_TARGETS, Job
from lathe.service.jobs.kinds.training import AdaptJob, AdviseJob, FitJob, MigrateJob, TrainJob
from lathe.service.jobs.sources import (
    JobSource,
    locate_data_sets,
    receive_source,
    resolve_allowed_folder,
    resolve_allowed_path,
)
from lathe.service.publishing.training import require_free_name, require_trainable
from lathe.service.services import ADMIN, Services, ServicesDep
from lathe.training.deciding.requests import AdaptRequest, AdviceRequest, MigrateRequest, find_missing_module
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.finetuning.requests import NewTraining
from lathe.training.fitting.pairs import ensure_test_pairs, read_pairs
from lathe.training.fitting.requests import NewFit, RowSource

router = APIRouter(route_class=StrictRoute, tags=["jobs"], responses=ERRORS)


async def _queue(create_job: Callable[[Services, bytes], Job], request: Request, services: Services) -> Response:
    services.require_writable()
    job = await run_in_threadpool(create_job, services, await read_json(request, services.settings))
    return await answer_job(job.id)


@router.post("/fit-transform", dependencies=ADMIN, openapi_extra=describe_body(NewFit), status_code=202)
async def fit_transform(request: Request, services: ServicesDep) -> Response:
    """Queue the fit of a chain of transforms as a job. Answer 202 with the job's id and URL."""
    return await _queue(_create_fit_job, request, services)


def _create_fit_job(services: Services, json_body: bytes) -> Job:
    """Check the JSON body of a fit as far as possible, queue its job with the data sent, and return the job.

    Vectors for which the request names no encoder are fitted without one.
    """
    request = validate_json(json_body, NewFit)
    chain, data_root = request.check(), services.settings.data_root
    engine = services.embedder.find_engine(request.encoder, param="encoder")
    source = receive_source(request.source, data_root)
    spec = engine.spec if source.texts or request.encoder is not None else None  # vectors may have no encoder
    dimensions = _count_dimensions(source, spec, engine)
    source.check_distinct("a fit")
    if dimensions is not None:
        chain.signature(dimensions)

    target = None
    if request.target_encoder is not None:
        target = services.embedder.find_engine(request.target_encoder, param="target_encoder").spec
    paths = {"source": source.path}
    paths |= store_queries(request.queries, dimensions, source.files, data_root)
    paths |= _store_targets(request.targets, source.files, data_root)
    paths |= store_pairs(request, source.files, data_root)
    _require_usable_pairs(request)
    corpora = {
        name: resolve_allowed_path(path, data_root, f"out_of_domain.{name}")
        for name, path in request.out_of_domain.items()
    }
    located = request.with_paths(paths).model_copy(update={"out_of_domain": corpora})
    job = FitJob(encoder=spec, target_encoder=target, request=located, files=tuple(source.files))
    return services.jobs.submit("fit", job.to_json(), source.files)


def _count_dimensions(source: JobSource, spec: EncoderSpec | None, engine: Engine) -> int | None:
    """Return the number of dimensions of the vectors to fit on, or None if it is not known yet.

    Raises:
        ConflictError: if vectors that were sent do not have the dimensions of their encoder.
    """
    if spec is None:
        return source.dimensions
    dimensions = engine.info.dimensions if engine.info else None
    if None not in (dimensions, source.dimensions) and dimensions != source.dimensions:
        raise ConflictError(
            f"the source's vectors have {source.dimensions} dimensions, those of {engine.spec.name} have {dimensions}",
            param="source.vectors",
            code="space_mismatch",
        )
    return dimensions


def _require_usable_pairs(request: NewFit) -> None:
    """Raise `FitError` if the request's pairs are too few to fit on some and certify with others, or overlap.

    Pairs in files are not read here.
    """
    if isinstance(request.pairs, str) or isinstance(request.test_pairs, str):
        return  # files are read by the job
    fit, test = (None if pairs is None else read_pairs(pairs) for pairs in (request.pairs, request.test_pairs))
    if fit is not None or test is not None:
        ensure_test_pairs(fit, test, request.seed)


def _store_targets(targets: RowSource | None, files: dict[str, bytes], data_root: Path | None) -> dict[str, str]:
    """Return the path from which the job reads target vectors, as `{"targets": path}`, or {} without targets.

    Vectors in the request are added to `files`.

    Raises:
        BadValueError: if they are texts.
    """
    if targets is None:
        return {}
    if targets.texts is not None:
        raise BadValueError("targets are vectors; for texts name their target_encoder", param="targets.texts")
    if targets.path is not None:
        return {"targets": resolve_allowed_path(targets.path, data_root)}
    rows = targets.vectors or []
    files[FILE_OF_TARGETS] = dump_npy(as_vectors(rows, max_rows=len(rows) + 1))
    return {"targets": FILE_OF_TARGETS}


@router.post("/advise", dependencies=ADMIN, openapi_extra=describe_body(AdviceRequest), status_code=202)
async def advise(request: Request, services: ServicesDep) -> Response:
    """Queue a job that decides in what form to store vectors. Answer 202 with the job's id and URL."""
    return await _queue(_create_advice_job, request, services)


def _create_advice_job(services: Services, json_body: bytes) -> Job:
    """Check the JSON body of an advice request, queue its job with the data sent, and return the job.

    What can be checked before the work begins is checked here, so that the client is told at once.

    Raises:
        NotSupportedError: if the extra `evaluation` is not installed.
        ServiceError, TrainingError: if the body, the name in `fit`, the encoder or the source is not valid, too few
            distinct rows were sent, or an encoder is named for vectors without `fit`.
    """
    request = validate_json(json_body, AdviceRequest)
    if module := find_missing_module():
        raise NotSupportedError(f"advice needs {module}: pip install 'lathe-training[evaluation]'")
    engine = services.embedder.find_engine(request.encoder, param="encoder")
    source = receive_source(request.source, services.settings.data_root)
    source.check_distinct("advice")

    if not source.texts and request.encoder is not None and request.fit is None:
        raise BadValueError(
            "the source holds vectors: leave `encoder` out, or name a chain to `fit` for that encoder", param="encoder"
        )
    spec = engine.spec if source.texts or request.encoder is not None else None
    job = AdviseJob(encoder=spec, request=request.with_paths({"source": source.path}), files=tuple(source.files))
    return services.jobs.submit("advise", job.to_json(), source.files)


@router.post("/train", dependencies=ADMIN, openapi_extra=describe_body(NewTraining), status_code=202)
async def train(request: Request, services: ServicesDep) -> Response:
    """Queue the training of an encoder as a job. Answer 202 with the job's id and URL.

    The result is the next version of the encoder that the request names.
    """
    return await _queue(_create_train_job, request, services)


def _create_train_job(services: Services, json_body: bytes) -> Job:
    request = validate_json(json_body, NewTraining)
    require_free_name(request.name, services.settings)
    job = request.check()
    located = locate_data_sets(request.job, services.settings.data_root)
    request = request.model_copy(update={"job": located})

    base = _find_encoder(services, job.encoder, "job.encoder")
    require_trainable(base)
    mining = job.negatives.model if job.negatives else None
    auxiliary = _find_encoder(services, mining, "job.negatives.model")
    return services.jobs.submit("train", TrainJob(encoder=base, auxiliary=auxiliary, request=request).to_json(), {})


def _find_encoder(services: Services, name: str | None, field: str) -> EncoderSpec:
    if name is None:
        return services.embedder.default.spec
    spec = services.settings.find_encoder_spec(name)
    if spec is None:
        known = ", ".join(spec.name for spec in services.settings.specs)
        raise UnknownNameError(f"there is no encoder {name[:80]!r}; there are: {known}", param=field)
    return spec


@router.post("/adapt", dependencies=ADMIN, openapi_extra=describe_body(AdaptRequest), status_code=202)
async def adapt(request: Request, services: ServicesDep) -> Response:
    """Queue a job that tries what judged searches can improve, from a map of queries to a trained encoder.

    Answers 202 with the job's id and URL. The job recommends one change, and publishes it if the request has a name.
    """
    return await _queue(_create_adapt_job, request, services)


def _create_adapt_job(services: Services, json_body: bytes) -> Job:
    request = validate_json(json_body, AdaptRequest)
    request.check()
    if request.name is not None and request.train:
        require_free_name(request.name, services.settings)

    data_root = services.settings.data_root
    engine = services.embedder.find_engine(request.encoder, param="encoder")
    source = receive_source(request.source, data_root)
    source.check_distinct("an adaptation")
    paths = {"source": source.path} | store_pairs(request, source.files, data_root)
    folders = [resolve_allowed_folder(folder, data_root, "folders") for folder in request.folders]
    located = request.with_paths(paths).model_copy(update={"folders": folders})
    job = AdaptJob(encoder=engine.spec, request=located, files=tuple(source.files))
    return services.jobs.submit("adapt", job.to_json(), source.files)


@router.post("/migrate", dependencies=ADMIN, openapi_extra=describe_body(MigrateRequest), status_code=202)
async def migrate(request: Request, services: ServicesDep) -> Response:
    """Queue a job that decides whether another encoder is worth it. Answer 202 with the job's id and URL.

    It compares to stay, to map queries, and to encode all rows again. It changes nothing.
    """
    return await _queue(_create_migrate_job, request, services)


def _create_migrate_job(services: Services, json_body: bytes) -> Job:
    request = validate_json(json_body, MigrateRequest)
    present = _find_encoder(services, request.encoder, "encoder")
    new = _find_encoder(services, request.to, "to")
    data_root = services.settings.data_root
    source = receive_source(request.source, data_root)
    source.check_distinct("a migration")
    paths = {"source": source.path} | store_queries(request.queries, None, source.files, data_root)
    paths |= store_pairs(request, source.files, data_root)
    job = MigrateJob(encoder=present, new=new, request=request.with_paths(paths), files=tuple(source.files))
    return services.jobs.submit("migrate", job.to_json(), source.files)
