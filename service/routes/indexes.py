"""Indexes: made, filled, searched, made anew."""

import asyncio
from dataclasses import asdict
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.answers import ERRORS, VECTOR_HEADERS, json_answer
from service.bodies import (
    GetBody,
    IdsBody,
    IndexBody,
    ReindexBody,
    SearchBody,
    TextsOrVectors,
    UpsertBody,
    declared,
    read_json,
)
from service.codec import as_vectors, require_rows
from service.engine import EncodeOptions
from service.errors import BadValueError, ConflictError, TooLargeError, UnavailableError, WrongShapeError
from service.index.bridge import Bridge
from service.index.filters import parse_filter
from service.index.generation import Generation
from service.index.index import Hits, Index, SpaceMovedError, fragment
from service.index.items import require_ids
from service.index.record import Written
from service.index.spec import IndexSpec
from service.index.specs import Specs
from service.jobs.store import Job
from service.routes.embed import checked_texts
from service.services import ADMIN, USE, Services, ServicesDep
from transforms.artifact import MANIFEST, TENSORS

router = APIRouter(prefix="/indexes", tags=["indexes"], responses=ERRORS)

RESULTS_MOST = 1_000_000
"""Queries times candidates of one request."""

MOVES_MOST = 5

Vectors = NDArray[np.float32]
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
    services.require_writable()
    body = await read_json(request, services.settings, IndexBody)
    index = await run_in_threadpool(create, name, body, services)
    return await json_answer(await run_in_threadpool(index.describe))


@router.delete("/{name}", dependencies=ADMIN)
async def delete_index(name: str, services: ServicesDep) -> Response:
    """Remove an index for good, and what is being made for it."""
    services.require_writable()
    await run_in_threadpool(services.indexes.require_owned, name)
    for job in await run_in_threadpool(reindexing, services, name):
        await run_in_threadpool(services.supervisor.cancel, job.id)
    await run_in_threadpool(services.indexes.delete, name)
    return await json_answer({"deleted": name})


@router.post("/{name}/upsert", dependencies=USE, openapi_extra=declared(UpsertBody))
async def upsert(name: str, request: Request, services: ServicesDep) -> Response:
    """Put items, in place of those with the same ids; all of them or none."""
    services.require_writable()
    body = await read_json(request, services.settings, UpsertBody)
    index = await run_in_threadpool(services.indexes.get, name)
    require_rows(len(body.ids), services.settings.max_vectors, "ids")
    require_ids(body.ids)
    for _ in range(MOVES_MOST):
        spec = index.generation.spec
        require_as_many(body)
        vectors, _reduced = await originals(body, spec, request, services)
        metadata = metadata_of(body, spec)
        try:
            writing = index.upsert(body.ids, vectors, metadata, spec.raw_space_id)
            written: Written = await asyncio.wrap_future(writing)
        except SpaceMovedError:
            if body.vectors is not None:
                require_space(spec.raw_space_id, index.generation.spec, of_originals=True)
            continue  # the index moved to another encoder meanwhile: the texts are embedded by that
        return await json_answer({"upserted": len(body.ids), "sequence": written.sequence})
    raise UnavailableError("the index keeps moving to other encoders; try again")


@router.post("/{name}/delete", dependencies=USE, openapi_extra=declared(IdsBody))
async def delete(name: str, request: Request, services: ServicesDep) -> Response:
    """Remove items; ids that are not there are nothing to do."""
    services.require_writable()
    body = await read_json(request, services.settings, IdsBody)
    index = await run_in_threadpool(services.indexes.get, name)
    require_rows(len(body.ids), services.settings.max_vectors, "ids")
    written: Written = await asyncio.wrap_future(index.delete(list(dict.fromkeys(body.ids))))
    return await json_answer({"deleted": len(written.dead), "sequence": written.sequence})


@router.post("/{name}/get", dependencies=USE, openapi_extra=declared(GetBody))
async def get(name: str, request: Request, services: ServicesDep) -> Response:
    """Items by their ids, in that order; null for one that is not there."""
    body = await read_json(request, services.settings, GetBody)
    index = await run_in_threadpool(services.indexes.get, name)
    require_rows(len(body.ids), services.settings.max_vectors, "ids")
    return await json_answer({"items": await run_in_threadpool(index.get, body.ids, body.vectors)})


@router.post(
    "/{name}/search",
    dependencies=USE,
    openapi_extra=declared(SearchBody),
    responses={200: {"description": "Items", "headers": VECTOR_HEADERS}},
)
async def search(name: str, request: Request, services: ServicesDep) -> Response:
    """The nearest items to each query, best first."""
    body = await read_json(request, services.settings, SearchBody)
    if body.ef is not None and body.ef < body.k:
        raise BadValueError(f"ef ({body.ef}) must be at least k ({body.k})", param="ef")
    wanted = parse_filter(body.filter) if body.filter is not None else None
    index = await run_in_threadpool(services.indexes.get, name)
    generation = index.generation  # this one answers, whatever happens to the index meanwhile
    bridge = bridge_for(body.encoder, index, generation)
    if bridge is not None:
        coming, _ = await originals(body, bridge.spec, request, services)
        queries, reduced = await run_in_threadpool(bridge, coming), False
    else:
        if body.encoder is not None:
            require_own_encoder(body.encoder, name, generation.spec, services)
        queries, reduced = await originals(body, generation.spec, request, services, searching=True)
    if len(queries) * body.k * (body.rescore or 1) > RESULTS_MOST:
        raise TooLargeError(f"queries × k × rescore may be at most {RESULTS_MOST:,}", param="k")
    if reduced and body.rescore is not None:
        raise BadValueError("reduced queries cannot be rescored: send the encoder's own vectors", param="rescore")
    rescoring = None if body.rescore is None else float(body.rescore)
    hits = await run_in_threadpool(index.search, generation, queries, body.k, body.ef, rescoring, wanted, reduced)
    told = {"aligned": bridge.describe()} if bridge is not None else {}
    return await answer(hits, told)


@router.post("/{name}/reindex", dependencies=ADMIN, openapi_extra=declared(ReindexBody), status_code=202)
async def reindex(name: str, request: Request, services: ServicesDep) -> Response:
    """Make the index anew beside the one that serves, by another chain, encoder or graph; without any, compact it."""
    services.require_writable()
    body = await read_json(request, services.settings, ReindexBody)
    index = await run_in_threadpool(services.indexes.get, name)
    job = await run_in_threadpool(create_reindex_job, name, index, body, services)
    url = f"/jobs/{job.id}"
    return await json_answer({"job_id": job.id, "status_url": url}, 202, {"location": url})


def create(name: str, body: IndexBody, services: Services) -> Index:
    """Make an index as asked."""
    if name in services.indexes.names():
        there = services.indexes.get(name).generation.spec.chain
        if there.partition("@")[0] == body.chain:  # a bare name asks for no version; the index keeps to its own
            body = body.model_copy(update={"chain": there})
    spec, artifact = specs(services).of_new(body)
    asked = {"raw_space_id", "chain", *body.model_fields_set} - {"encoder" if body.encoder is None else ""}
    return services.indexes.create(name, spec, artifact, sorted(asked))


def create_reindex_job(name: str, index: Index, body: ReindexBody, services: Services) -> Job:
    """Check what can be checked before work begins, then queue the job."""
    spec, artifact, encoder = specs(services).of_reindexed(body, index)
    files = {} if artifact is None else dict(zip((MANIFEST, TENSORS), artifact, strict=True))
    if body.texts:
        files["source.texts.json"] = orjson.dumps(body.texts)
    request = {
        "index": name,
        "spec": spec.json(),
        "encoder": asdict(encoder.spec) if encoder else None,
        "text_field": spec.text_field or "text",
    }
    with index.reindexing:  # of two requests at once, the second sees the first's job
        if reindexing(services, name):
            raise ConflictError(f"the index {name} is being made anew already", param="name")
        job = services.jobs.create("reindex", request, files)
    services.supervisor.submit(job)
    return job


def reindexing(services: Services, name: str) -> list[Job]:
    """Jobs that make an index anew and have not ended."""
    under_way = [job for job in services.jobs.list() if job.kind == "reindex" and not job.ended]
    return [job for job in under_way if services.jobs.request(job.id).get("index") == name]


def specs(services: Services) -> Specs:
    """What finds settings."""
    embedder = services.embedder
    return Specs(
        services.registry,
        embedder.targets,
        lambda name: embedder.engine(name, param="encoder").require_ready(),
        lambda: [engine.require_ready() for engine in embedder.engines.values()],
    )


async def originals(
    body: TextsOrVectors, spec: IndexSpec, request: Request, services: Services, searching: bool = False
) -> tuple[Vectors, bool]:
    """The vectors `(n, d)` a body says, and whether they went through the index's chain already.

    Only queries may have: an item is kept as its encoder gave it.

    Raises:
        ServiceError: for texts that cannot be encoded here, vectors of another space or width.
    """
    said = body.space_id or request.headers.get("x-space-id")
    if said is not None:
        require_space(said, spec, of_originals=body.vectors is not None and not searching)
    if body.texts is not None:
        texts = checked_texts(body.texts, services.settings, "texts")
        engine = services.embedder.engine_of_index(spec)
        options = EncodeOptions(body.prompt_name)
        return (await services.embedder.embed(texts, engine, None, None, options)).vectors, False
    vectors = await run_in_threadpool(as_vectors, body.vectors, services.settings.max_vectors)
    reduced = said == spec.space_id != spec.raw_space_id
    width = spec.dimensions if reduced else spec.width
    if vectors.shape[1] != width:
        raise WrongShapeError(f"the index takes vectors {width} wide, these are {vectors.shape[1]}", param="vectors")
    require_directions(vectors, spec)
    return vectors, reduced


def require_space(said: str, spec: IndexSpec, of_originals: bool) -> None:
    """Raise `ConflictError` for vectors of another space than the originals', or, where that will do, the index's."""
    if said != spec.raw_space_id and (of_originals or said != spec.space_id):
        raise ConflictError(
            f"the vectors belong to the space {said}, the index to {spec.space_id} "
            f"(its originals to {spec.raw_space_id})",
            param="space_id",
            code="space_mismatch",
        )


def require_directions(vectors: Vectors, spec: IndexSpec) -> None:
    """Raise `BadValueError` for zero vectors where only directions count."""
    empty = ~vectors.any(axis=1)
    if spec.metric == "cosine" and empty.any():
        raise BadValueError(f"vector {int(empty.argmax())} is zero: it has no direction to compare", param="vectors")


def bridge_for(encoder: str | None, index: Index, generation: Generation) -> Bridge | None:
    """What takes queries of an encoder to the space of a generation; None where none is needed, or there."""
    bridge = index.bridge
    if bridge is None or encoder != bridge.spec.encoder or bridge.spec.generation == generation.spec.generation:
        return None
    return bridge


def require_own_encoder(encoder: str, name: str, spec: IndexSpec, services: Services) -> None:
    """Raise `ConflictError` for queries of another encoder than the index's."""
    engine = services.embedder.engine(encoder, param="encoder")
    if engine.require_ready().fingerprint != spec.encoder_fingerprint:
        raise ConflictError(
            f"the index {name} holds vectors of {spec.encoder or 'another encoder'} (space {spec.raw_space_id}), "
            f"not of {encoder}; reindex it with that encoder",
            param="encoder",
            code="space_mismatch",
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


async def answer(hits: Hits, told: dict[str, Any]) -> Response:
    """What a search found, as JSON."""
    spec = hits.spec
    results = await run_in_threadpool(shown, hits)
    content = {"results": results, "space_id": spec.space_id, "chain": spec.chain} | told
    headers = {"x-space-id": spec.space_id, "x-chain": spec.chain, "x-dimensions": str(spec.dimensions)}
    return await json_answer(content, headers=headers)


def shown(hits: Hits) -> list[list[dict[str, Any]]]:
    """Each query's items as JSON has them."""
    return [
        [{"id": item, "score": score, "metadata": fragment(metadata)} for item, metadata, score in found]
        for found in hits.results
    ]
