"""Indexes: made, filled, searched, made anew."""

import asyncio
from dataclasses import asdict
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.answers import ERRORS, job_answer, json_answer
from service.bodies import (
    GetBody,
    IdsBody,
    IndexBody,
    ReindexBody,
    UpsertBody,
    declared,
    parse,
    read_json,
    read_unparsed,
)
from service.codec import require_rows
from service.errors import BadValueError, ConflictError, NotSupportedError, UnavailableError, WrongShapeError
from service.index.index import Index, SpaceMovedError
from service.index.indexes import require_same
from service.index.items import require_ids
from service.index.payloads import require_small
from service.index.protocol import Change, SearchIndex
from service.index.spec import IndexSpec
from service.index.specs import Specs
from service.jobs.requests import FILE_OF_NEW_TEXTS, ReindexJob
from service.jobs.store import Job
from service.names import require_name
from service.routes.originals import encoded_texts, given_vectors, require_said, require_space, space_said
from service.services import ADMIN, USE, Services, ServicesDep
from transforms.artifact import MANIFEST, TENSORS

router = APIRouter(prefix="/indexes", tags=["indexes"], responses=ERRORS)

MOVES_MOST = 5

Metadata = list[dict[str, Any] | None]


@router.get("", dependencies=USE)
async def list_indexes(services: ServicesDep) -> Response:
    """All indexes."""
    return await json_answer(await run_in_threadpool(services.indexes.describe))


@router.get("/{name}", dependencies=USE)
async def show_index(name: str, services: ServicesDep) -> Response:
    """`{name, count, chain, space_id, dimensions, state, …}` with what it takes and how old its snapshot is."""
    index = await run_in_threadpool(services.indexes.get, name)
    return await json_answer(await run_in_threadpool(index.describe))


@router.put("/{name}", dependencies=ADMIN, openapi_extra=declared(IndexBody))
async def create_index(name: str, request: Request, services: ServicesDep) -> Response:
    """Make an index; the same one again changes nothing."""
    services.require_indexes_writable()
    body = await read_json(request, services.settings, IndexBody)
    index = await run_in_threadpool(create, name, body, services)
    return await json_answer(await run_in_threadpool(index.describe))


@router.delete("/{name}", dependencies=ADMIN)
async def delete_index(name: str, services: ServicesDep) -> Response:
    """Remove an index for good, and what is being made for it."""
    services.require_indexes_writable()
    await run_in_threadpool(services.indexes.require_owned, name)
    for job in await run_in_threadpool(reindexing, services, name):
        await run_in_threadpool(services.jobs.cancel, job.id)
    await run_in_threadpool(services.indexes.delete, name)
    return await json_answer({"deleted": name})


@router.post("/{name}/upsert", dependencies=USE, openapi_extra=declared(UpsertBody))
async def upsert(name: str, request: Request, services: ServicesDep) -> Response:
    """Put items, in place of those with the same ids; all of them or none."""
    services.require_indexes_writable()
    body = await read_json(request, services.settings, UpsertBody)
    index = await run_in_threadpool(services.indexes.get, name)
    require_rows(len(body.ids), services.settings.max_vectors, "ids")
    require_ids(body.ids)
    said = space_said(body, request)
    require_as_many(body)
    for _ in range(MOVES_MOST):
        spec = index.spec
        if body.vectors is not None:
            require_said(said, spec)
        require_space(said, spec, of_originals=body.vectors is not None)
        if body.texts is not None:
            vectors = await encoded_texts(request, body, spec, services)
        else:
            vectors = await run_in_threadpool(given_vectors, body, spec, services)
        metadata = metadata_of(body, spec)
        try:
            writing = index.upsert(body.ids, vectors, metadata, spec.raw_space_id)
            written: Change = await asyncio.wrap_future(writing)
        except SpaceMovedError:
            if body.vectors is not None:
                require_space(spec.raw_space_id, index.spec, of_originals=True)
            continue  # the index moved to another encoder meanwhile: the texts are embedded by that
        return await json_answer({"upserted": len(body.ids), "sequence": written.sequence})
    raise UnavailableError("the index keeps moving to other encoders; try again")


@router.post("/{name}/delete", dependencies=USE, openapi_extra=declared(IdsBody))
async def delete(name: str, request: Request, services: ServicesDep) -> Response:
    """Remove items; ids that are not there are nothing to do."""
    services.require_indexes_writable()
    body = await read_json(request, services.settings, IdsBody)
    index = await run_in_threadpool(services.indexes.get, name)
    require_rows(len(body.ids), services.settings.max_vectors, "ids")
    written: Change = await asyncio.wrap_future(index.delete(list(dict.fromkeys(body.ids))))
    return await json_answer({"deleted": written.gone, "sequence": written.sequence})


@router.post("/{name}/get", dependencies=USE, openapi_extra=declared(GetBody))
async def get(name: str, request: Request, services: ServicesDep) -> Response:
    """Items by their ids, in that order; null for one that is not there."""
    body = await run_in_threadpool(parse, await read_unparsed(request, services.settings), GetBody)
    index = await run_in_threadpool(services.indexes.get, name)
    require_rows(len(body.ids), services.settings.max_vectors, "ids")
    items = await run_in_threadpool(index.get, body.ids, body.vectors)
    await run_in_threadpool(require_small, items)
    return await json_answer({"items": items})


@router.post("/{name}/reindex", dependencies=ADMIN, openapi_extra=declared(ReindexBody), status_code=202)
async def reindex(name: str, request: Request, services: ServicesDep) -> Response:
    """Make the index anew beside the one that serves, by another chain, encoder or graph; without any, compact it."""
    services.require_writable()
    body = await read_json(request, services.settings, ReindexBody)
    index = await run_in_threadpool(services.indexes.get, name)
    if not isinstance(index, Index):
        raise NotSupportedError(
            f"an index in Milvus is not made anew in its place: lathe index export {name}, make another with the "
            "settings you want, and import into that"
        )
    job = await run_in_threadpool(create_reindex_job, name, index, body, services)
    return await job_answer(job.id)


def create(name: str, body: IndexBody, services: Services) -> SearchIndex:
    """Make an index as asked."""
    require_name(name, "an index")
    if name not in services.indexes.names():
        services.indexes.create(name, *specs(services).of_new(body))
    index = services.indexes.get(name)
    there = index.spec
    asked = {key: value for key in body.model_fields_set if (value := getattr(body, key)) is not None}
    if there.chain.partition("@")[0] == body.chain.removesuffix("@live"):  # it keeps to the version it was made with
        del asked["chain"]
    if "encoder" in asked and there.encoder is not None:
        asked["encoder"] = services.embedder.engine(asked["encoder"], param="encoder").spec.name
    require_same(name, there, asked)
    return index


def create_reindex_job(name: str, index: Index, body: ReindexBody, services: Services) -> Job:
    """Check what can be checked before work begins, then queue the job."""
    spec, artifact, encoder = specs(services).of_reindexed(body, index)
    if body.texts and encoder is None:
        raise BadValueError("texts are for another encoder: name it", param="texts")
    files = {} if artifact is None else dict(zip((MANIFEST, TENSORS), artifact, strict=True))
    if body.texts:
        files[FILE_OF_NEW_TEXTS] = orjson.dumps(body.texts)
    request = {
        "index": name,
        "spec": spec.json(),
        "encoder": asdict(encoder.spec) if encoder else None,
        "text_field": spec.text_field or "text",
    }
    with index.reindexing:  # of two requests at once, the second sees the first's job
        if reindexing(services, name):
            raise ConflictError(f"the index {name} is being made anew already", param="name")
        return services.jobs.submit("reindex", request, files)


def reindexing(services: Services, name: str) -> list[Job]:
    """Jobs that make an index anew and have not ended."""
    under_way = [job for job in services.jobs.list() if job.kind == "reindex" and not job.ended]
    asked = [(job, services.jobs.request(job.id)) for job in under_way]
    return [job for job, request in asked if isinstance(request, ReindexJob) and request.index == name]


def specs(services: Services) -> Specs:
    """What finds settings."""
    embedder = services.embedder
    return Specs(
        services.registry,
        embedder.targets,
        lambda name: embedder.engine(name, param="encoder").require_ready(),
        lambda: [engine.require_ready() for engine in embedder.engines.values()],
    )


def require_as_many(body: UpsertBody) -> None:
    """Raise `WrongShapeError` unless there are as many ids as texts or vectors, and metadata."""
    given = [body.texts] if isinstance(body.texts, str) else body.texts or body.vectors or []
    counts = {"ids": len(body.ids)} | ({"texts or vectors": len(given)} if given else {})  # none is another error
    if body.metadata is not None:
        counts["metadata"] = len(body.metadata)
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} {what}" for what, count in counts.items())
        raise WrongShapeError(f"{told}: give as many of each", param="ids")


def metadata_of(body: UpsertBody, spec: IndexSpec) -> Metadata:
    """Metadata of each item, with its text where the index keeps those."""
    metadata: Metadata = list(body.metadata) if body.metadata is not None else [None] * len(body.ids)
    if spec.text_field is not None and body.texts is not None:
        texts = [body.texts] if isinstance(body.texts, str) else body.texts
        metadata = [(given or {}) | {spec.text_field: text} for text, given in zip(texts, metadata, strict=True)]
    return metadata
