"""Fitting a chain, as a job."""

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.answers import ERRORS, job_answer
from service.bodies import FitBody, SourceBody, declared, read_json
from service.codec import as_vectors, dump_npy
from service.engine.engine import Engine
from service.errors import BadValueError, ConflictError
from service.fit_job import job_request
from service.jobs.sources import FILE_OF_TARGETS, allowed_path, receive, require_distinct
from service.jobs.store import Job
from service.names import require_name
from service.registry import LoadedChain
from service.services import ADMIN, Services, ServicesDep
from training.encoder.spec import EncoderSpec
from training.fitting.fit import require_no_targets
from training.fitting.fit_request import FitRequest
from training.fitting.gates import require_gates
from training.fitting.incremental import require_moments
from training.fitting.pairs import require_pairs_or_none
from transforms.chain import Chain, build_steps

router = APIRouter(tags=["jobs"], responses=ERRORS)


@router.post("/fit-transform", dependencies=ADMIN, openapi_extra=declared(FitBody), status_code=202)
async def fit_transform(request: Request, services: ServicesDep) -> Response:
    """Queue a fit; 202 with where to watch it."""
    services.require_writable()
    body = await read_json(request, services.settings, FitBody)
    job = await run_in_threadpool(create_job, body, services)
    return await job_answer(job.id)


def create_job(body: FitBody, services: Services) -> Job:
    """Check all that can be checked before work begins, then queue the job.

    Raises:
        ServiceError, TransformError, TrainingError: for what could only fail later.
    """
    require_name(body.name)
    require_gates(body.gates)
    version = None if body.add_to is None else version_with_moments(body.add_to, services)
    chain = Chain(build_steps(body.steps or []), body.normalize) if version is None else version.chain
    encoder = body.encoder or (chain.metadata.get("encoder") or {}).get("name")
    engine = services.embedder.engine(encoder, param="encoder")
    sent = receive(body.source, services.settings.data_root)
    spec: EncoderSpec | None = engine.spec
    width = engine.info.dimensions if engine.info else None
    if not sent.texts and encoder is None:
        spec, width = None, sent.width
    elif None not in (width, sent.width) and width != sent.width:
        raise ConflictError(
            f"the vectors are {sent.width} wide, those of {engine.spec.name} are {width}",
            param="source.vectors",
            code="space_mismatch",
        )
    require_distinct(sent, "a fit")
    if version is not None:
        require_same_space(version, spec, engine)
    if width is not None:
        chain.signature(width)
    request = FitRequest(
        name=body.name,
        steps=[] if version else chain.specs(),
        source=sent.path,
        normalize=body.normalize,
        gates=body.gates,
        promote=body.promote,
        seed=body.seed,
        targets=None if body.targets is None else targets_of(body.targets, services, sent.files),
        keep_moments=body.keep_moments,
        add_to=version.ref if version else None,
    )
    target = services.embedder.engine(body.target_encoder, param="target_encoder").spec if body.target_encoder else None
    if version is None:
        require_pairs_or_none(chain, request.targets, target)
    else:
        require_no_targets(request, target)
    return services.jobs.submit("fit", job_request(request, spec, body.transform, sent.files, target), sent.files)


def version_with_moments(ref: str, services: Services) -> LoadedChain:
    """The version that rows are to be added to.

    Raises:
        UnknownNameError: for a chain there is not.
        FitError: if it carries no moments.
        ArtifactError: for a damaged one.
    """
    loaded = services.registry.load(ref)
    require_moments(loaded.ref, loaded.chain.metadata)
    return loaded


def require_same_space(version: LoadedChain, spec: EncoderSpec | None, engine: Engine) -> None:
    """Raise `ConflictError` if rows would be added to those of another encoder; one that is still loading is let by."""
    if spec is not None and engine.info is None:
        return
    found = engine.info.fingerprint if spec is not None and engine.info else None
    if found != version.encoder_fingerprint:
        raise ConflictError(
            f"{version.ref} was fitted on vectors of {version.encoder_fingerprint or 'nobody'}, "
            f"these would be of {found or 'nobody'}",
            param="encoder",
            code="space_mismatch",
        )


def targets_of(source: SourceBody, services: Services, files: dict[str, bytes]) -> str:
    """Where the targets of a fit on pairs lie; those in the request join the job's files.

    Raises:
        BadValueError: for texts.
    """
    if source.texts is not None:
        raise BadValueError("targets are vectors; for texts name their target_encoder", param="targets.texts")
    if source.path is not None:
        return allowed_path(source.path, services.settings.data_root)
    given = source.vectors or []
    vectors = as_vectors(given, most=len(given) + 1)
    files[FILE_OF_TARGETS] = dump_npy(vectors)
    return FILE_OF_TARGETS
