"""Fitting a chain, as a job."""

from pathlib import Path

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.answers import ERRORS, json_answer
from service.bodies import FitBody, SourceBody, declared, read_json
from service.codec import as_vectors, dump_json, dump_npy
from service.errors import BadValueError, ConflictError, ForbiddenError, UnknownNameError
from service.fit_job import job_request
from service.jobs.store import Job
from service.names import require_name
from service.services import ADMIN, Services, ServicesDep
from training.errors import SourceError
from training.fitting import DISTINCT_LEAST, FitRequest, require_gates
from training.pairs import require_pairs_or_none
from training.sources import BUILT_IN, open_source
from training.spec import EncoderSpec
from transforms.chain import Chain
from transforms.steps import build_steps

router = APIRouter(tags=["jobs"], responses=ERRORS)

FILE_OF_TEXTS, FILE_OF_VECTORS, FILE_OF_TARGETS = "source.jsonl", "source.npy", "targets.npy"


@router.post("/fit-transform", dependencies=ADMIN, openapi_extra=declared(FitBody), status_code=202)
async def fit_transform(request: Request, services: ServicesDep) -> Response:
    """Queue a fit; 202 with where to watch it."""
    services.require_writable()
    body = await read_json(request, services.settings, FitBody)
    job = await run_in_threadpool(create_job, body, services)
    url = f"/jobs/{job.id}"
    return await json_answer({"job_id": job.id, "status_url": url}, 202, {"location": url})


def create_job(body: FitBody, services: Services) -> Job:
    """Check all that can be checked before work begins, then queue the job.

    Raises:
        ServiceError, TransformError, TrainingError: for what could only fail later.
    """
    require_name(body.name)
    require_gates(body.gates)
    chain = Chain(build_steps(body.steps), body.normalize)
    source = body.source
    engine = services.embedder.engine(body.encoder, param="encoder")
    spec: EncoderSpec | None = engine.spec
    width = engine.info.dimensions if engine.info else None
    files: dict[str, bytes] = {}
    if source.texts is not None:
        path = FILE_OF_TEXTS
        require_distinct(len(set(source.texts)))
        files[path] = texts_file(source.texts)
    elif source.vectors is not None:
        vectors = as_vectors(source.vectors, most=len(source.vectors) + 1)
        if body.encoder is None:
            spec, width = None, vectors.shape[1]
        elif width not in (None, vectors.shape[1]):
            raise ConflictError(
                f"the vectors are {vectors.shape[1]} wide, those of {engine.spec.name} are {width}",
                param="source.vectors",
                code="space_mismatch",
            )
        path = FILE_OF_VECTORS
        require_distinct(len({row.tobytes() for row in vectors[:1000]}))
        files[path] = dump_npy(vectors)
    else:
        path = allowed_path(str(source.path), services.settings.data_root)
        if body.encoder is None and open_source(path).kind() == "vectors":
            spec, width = None, None
    if width is not None:
        chain.outline(width)
    request = FitRequest(
        name=body.name,
        steps=chain.specs(),
        source=path,
        normalize=body.normalize,
        gates=body.gates,
        promote=body.promote,
        seed=body.seed,
        targets=None if body.targets is None else targets_of(body.targets, services, files),
    )
    target = services.embedder.engine(body.target_encoder, param="target_encoder").spec if body.target_encoder else None
    require_pairs_or_none(chain, request.targets, target)
    job = services.jobs.create("fit", job_request(request, spec, body.transform, files, target), files)
    services.supervisor.submit(job)
    return job


def targets_of(source: SourceBody, services: Services, files: dict[str, bytes]) -> str:
    """Where the targets of a fit on pairs lie; those in the request join the job's files.

    Raises:
        BadValueError: for texts.
    """
    if source.texts is not None:
        raise BadValueError("targets are vectors; for texts name their target_encoder", param="targets.texts")
    if source.path is not None:
        return allowed_path(source.path, services.settings.data_root)
    vectors = as_vectors(source.vectors, most=len(source.vectors or []) + 1)
    files[FILE_OF_TARGETS] = dump_npy(vectors)
    return FILE_OF_TARGETS


def texts_file(texts: list[str]) -> bytes:
    """The texts as JSON lines.

    Raises:
        BadValueError: for none, or an empty one.
    """
    if not texts:
        raise BadValueError("source.texts must not be empty", param="source.texts")
    for index, text in enumerate(texts):
        if not text.strip():
            raise BadValueError(f"source.texts[{index}] is an empty text", param="source.texts")
    return b"\n".join(dump_json({"text": text}) for text in texts)


def require_distinct(count: int) -> None:
    """Raise `BadValueError` for too few different rows to fit on."""
    if count < DISTINCT_LEAST:
        raise BadValueError(
            f"a fit needs at least {DISTINCT_LEAST} different rows, the source has {count}", param="source"
        )


def allowed_path(written: str, data_root: Path | None) -> str:
    """A source inside the data root, as `open_source` reads it.

    Raises:
        ForbiddenError: for anything outside.
        UnknownNameError: if nothing is there.
    """
    if written in BUILT_IN:
        return written
    if data_root is None:
        raise ForbiddenError(
            "paths are off on this server: set LATHE_DATA_ROOT to the folder they may lie in", param="source.path"
        )
    place, separator, field = written.partition("#")
    root = data_root.resolve()
    try:
        path = (root / place).resolve()
    except (OSError, ValueError):  # a name no file can have
        raise UnknownNameError(f"there is no source {place[:80]!r}", param="source.path") from None
    if not path.is_relative_to(root):
        raise ForbiddenError(f"{place!r} lies outside the server's data folder", param="source.path")
    try:
        return open_source(f"{path}{separator}{field}").written
    except SourceError:
        raise UnknownNameError(
            f"there is no source {place!r} in the server's data folder", param="source.path"
        ) from None
