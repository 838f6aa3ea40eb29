"""Routes that create, fill, read, delete and reindex indexes, back them up and restore them.

The file is the index's record, the `record.db` of `lathe index backup`. It may be larger than memory, so neither route
holds it there.
"""

import asyncio
import sqlite3
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.chains.names import require_name
from lathe.service.codec import require_rows
from lathe.service.errors import BadValueError, NotSupportedError, UnavailableError, WrongShapeError, convert_error
from lathe.service.http.answers import answer_job, answer_json, stream_file
from lathe.service.http.encoding import encode_body_texts, parse_body_vectors, read_space_id, require_space
from lathe.service.http.json_body import read_json, validate_json
from lathe.service.http.openapi import BINARY, ERRORS, IndexName, describe_body
from lathe.service.http.queueing import build_spec_resolver, queue_calibration, queue_checkup, queue_reindex
from lathe.service.http.request_body import stream_body
from lathe.service.http.routing import StrictRoute
from lathe.service.http.schemas import DeleteBody, GetBody, UpsertBody
from lathe.service.index.embedded.backup import Restoration, open_copy
from lathe.service.index.items import parse_metadata, require_ids, require_small_response
from lathe.service.index.protocol import Change, SearchIndex, SpaceMovedError
from lathe.service.index.query import parse_filter
from lathe.service.index.spec import (
    CalibrateRequest,
    CheckupRequest,
    IndexRequest,
    IndexSpec,
    ReindexRequest,
    require_same_settings,
)
from lathe.service.jobs.job import ResultFile
from lathe.service.services import ADMIN, USE, WRITE, Services, ServicesDep
from lathe.training.encoder.text_encoder import SIDE_PROMPTS
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import PIECE_BYTES

router = APIRouter(route_class=StrictRoute, prefix="/indexes", tags=["indexes"], responses=ERRORS)

MAX_MOVES = 5
"""Number of times that an upsert is tried while the index moves to another encoder meanwhile."""

DEFAULT_LISTED = 20
"""Number of items that a listing has unless the request says another."""
MAX_LISTED = 1000
"""Maximum number of items of a listing."""

Metadata = list[dict[str, Any] | None]


@router.get("", dependencies=USE)
async def list_indexes(services: ServicesDep) -> Response:
    """Return all indexes, each with its settings and number of items."""
    return await answer_json(await run_in_threadpool(services.indexes.describe))


@router.get("/{name}", dependencies=USE)
async def show_index(name: IndexName, services: ServicesDep) -> Response:
    """Return the description of an index, `{name, count, chain, space_id, dimensions, state, …}`.

    It has the size of the index and the age of its snapshot. In the state folder, `memory` says the bytes of each part:
    `anonymous` is memory of the process, `page_cache` lists mapped files, which the system may drop from memory.
    `prompts` names the encoder's prompts for texts of items and for queries; null without one. `recall` has what
    searches lose of recall@10 by cause, and the shares of copied and of unreachable rows, measured by canaries while
    the index serves; null before the first. `checkup` is the result of the last checkup; null before the first.
    """
    index = await run_in_threadpool(services.indexes.get, name)
    return await answer_json(await run_in_threadpool(_describe_index, index, services))


@router.put("/{name}", dependencies=ADMIN, openapi_extra=describe_body(IndexRequest))
async def create_index(name: IndexName, request: Request, services: ServicesDep) -> Response:
    """Create an index and return its description. If it exists with these settings, nothing is changed."""
    services.require_indexes_writable()
    index = await run_in_threadpool(_create_index, name, services, await read_json(request, services.settings))
    return await answer_json(await run_in_threadpool(_describe_index, index, services))


@router.delete("/{name}", dependencies=ADMIN)
async def delete_index(name: IndexName, services: ServicesDep) -> Response:
    """Delete an index and its items, cancel its reindexing, and return `{"deleted": name}`."""
    services.require_indexes_writable()
    await run_in_threadpool(services.indexes.require_owned, name)
    # First the jobs: they write to the index's folder.
    for job_id in await run_in_threadpool(services.list_reindex_jobs, name):
        await run_in_threadpool(services.cancel_job, job_id)
    await run_in_threadpool(services.indexes.delete, name)
    return await answer_json({"deleted": name})


@router.post("/{name}/upsert", dependencies=WRITE, openapi_extra=describe_body(UpsertBody))
async def upsert(name: IndexName, request: Request, services: ServicesDep) -> Response:
    """Insert items, replacing those with the same ids. Return their number and the sequence number of the change.

    Either all of them are written or none.
    """
    services.require_indexes_writable()
    body, index = await run_in_threadpool(_check_upsert, name, services, await read_json(request, services.settings))
    space_id = read_space_id(body, request)
    for _ in range(MAX_MOVES):
        spec = index.spec
        require_space(space_id, body, spec, originals_only=body.vectors is not None)
        if body.texts is not None:
            vectors = await encode_body_texts(request, body, spec, services, "document")
        else:
            vectors = await run_in_threadpool(parse_body_vectors, body, spec, services)
        metadata = _list_metadata(body, spec)
        try:
            writing = index.upsert(body.ids, vectors, metadata, spec.raw_space_id)
            change: Change = await asyncio.wrap_future(writing)
        except SpaceMovedError:
            # The index moved to another encoder meanwhile, which encodes the texts. Vectors are refused by their space.
            if body.vectors is not None:
                space_id = spec.raw_space_id
            continue
        return await answer_json({"upserted": len(body.ids), "sequence": change.sequence})
    raise UnavailableError(f"the index moved to another encoder {MAX_MOVES} times during this request; try again")


@router.post("/{name}/delete", dependencies=WRITE, openapi_extra=describe_body(DeleteBody))
async def delete(name: IndexName, request: Request, services: ServicesDep) -> Response:
    """Delete items by their ids, or all that satisfy a filter.

    The answer has the number of deleted items and the sequence number of the change. Ids that do not exist are ignored.
    """
    services.require_indexes_writable()
    deleting = await run_in_threadpool(_queue_delete, name, services, await read_json(request, services.settings))
    change = await asyncio.wrap_future(deleting)
    return await answer_json({"deleted": change.removed, "sequence": change.sequence})


@router.post("/{name}/get", dependencies=USE, openapi_extra=describe_body(GetBody))
async def get(name: IndexName, request: Request, services: ServicesDep) -> Response:
    """Return items by their ids, in that order, with null for an id that does not exist."""
    items = await run_in_threadpool(
        _get_items, name, services, await read_json(request, services.settings, any_content_type=True)
    )
    return await answer_json({"items": items})


@router.get("/{name}/items", dependencies=USE)
async def list_items(
    name: IndexName,
    services: ServicesDep,
    limit: Annotated[
        int, Query(ge=1, le=MAX_LISTED, description="Maximum number of items.", examples=[50])
    ] = DEFAULT_LISTED,
    cursor: Annotated[
        str | None, Query(description="`next_cursor` of the page before; without it, the first.", examples=["50"])
    ] = None,
) -> Response:
    """Return a page of an index's items, `{id, metadata}` each, in the order in which they were written.

    `next_cursor` gives the next page; it is null after the last item. An item that is replaced between two pages comes
    again at the end. Milvus lists items in the order of their ids.
    """
    return await answer_json(await run_in_threadpool(_list_items, name, cursor, limit, services))


@router.post("/{name}/reindex", dependencies=ADMIN, openapi_extra=describe_body(ReindexRequest), status_code=202)
async def reindex(name: IndexName, request: Request, services: ServicesDep) -> Response:
    """Queue the rebuilding of an index by another chain, encoder or graph, or of its graph alone.

    Answers 202 with the job's id and URL. The index is served meanwhile.
    """
    services.require_writable()
    json_body = await read_json(request, services.settings)
    job = await run_in_threadpool(lambda: queue_reindex(name, services, validate_json(json_body, ReindexRequest)))
    return await answer_job(job.id)


@router.post("/{name}/calibrate", dependencies=ADMIN, openapi_extra=describe_body(CalibrateRequest), status_code=202)
async def calibrate(name: IndexName, request: Request, services: ServicesDep) -> Response:
    """Queue the calibration of an index, after which each hit of a search has a probability that it is right.

    Answers 202 with the job's id and URL. The index is served meanwhile.
    """
    services.require_writable()
    json_body = await read_json(request, services.settings)
    job = await run_in_threadpool(lambda: queue_calibration(name, services, validate_json(json_body, CalibrateRequest)))
    return await answer_job(job.id)


@router.post("/{name}/checkup", dependencies=ADMIN, openapi_extra=describe_body(CheckupRequest), status_code=202)
async def checkup(name: IndexName, request: Request, services: ServicesDep) -> Response:
    """Queue a checkup of an index: what is wrong with its vectors, and what takes recall from its searches.

    Answers 202 with the job's id and URL. The index is served meanwhile. `GET /indexes/{name}` keeps the last result.
    """
    services.require_writable()
    json_body = await read_json(request, services.settings)
    job = await run_in_threadpool(lambda: queue_checkup(name, services, validate_json(json_body, CheckupRequest)))
    return await answer_job(job.id)


def _create_index(name: str, services: Services, json_body: bytes) -> SearchIndex:
    """Create the index that a JSON body describes and return it. Return an existing index if its settings agree.

    Raises:
        ConflictError: if it has others; a chain without a version stands for whichever version the index has.
        ServiceError: if the body, the name or the settings are not valid.
    """
    body = validate_json(json_body, IndexRequest)
    require_name(name, "an index")
    if name not in services.indexes.names():
        services.indexes.create(name, *build_spec_resolver(services).resolve_new(body))

    index = services.indexes.get(name)
    spec = index.spec
    requested = {key: value for key in body.model_fields_set if (value := getattr(body, key)) is not None}
    if spec.chain.partition("@")[0] == body.chain.removesuffix("@live"):  # an index keeps the version it began with
        del requested["chain"]
    if "encoder" in requested and spec.encoder is not None:
        requested["encoder"] = services.embedder.find_engine(requested["encoder"], param="encoder").spec.name
    require_same_settings(name, spec, requested)
    return index


def _check_upsert(name: str, services: Services, json_body: bytes) -> tuple[UpsertBody, SearchIndex]:
    body = validate_json(json_body, UpsertBody)
    index = services.indexes.get(name)
    require_rows(len(body.ids), services.settings.max_vectors, "ids")
    require_ids(body.ids)
    _require_equal_counts(body)
    return body, index


def _queue_delete(name: str, services: Services, json_body: bytes) -> Future[Change]:
    """Queue the deletion of the items that the JSON body selects. Return the future of the change to the index.

    The number of ids is checked first; repeated ids count once.
    """
    body = validate_json(json_body, DeleteBody)
    index = services.indexes.get(name)
    if body.ids is None:
        return index.delete_matching(parse_filter(body.filter))
    require_rows(len(body.ids), services.settings.max_vectors, "ids")
    return index.delete(list(dict.fromkeys(body.ids)))


def _get_items(name: str, services: Services, json_body: bytes) -> list[dict[str, Any] | None]:
    body = validate_json(json_body, GetBody)
    index = services.indexes.get(name)
    require_rows(len(body.ids), services.settings.max_vectors, "ids")
    items = index.get(body.ids, body.vectors)
    require_small_response(items)
    return items


def _list_items(name: str, cursor: str | None, limit: int, services: Services) -> dict[str, Any]:
    payloads, next_cursor = services.indexes.get(name).read_page(cursor, limit)
    items = [
        {"id": item, "metadata": None if metadata is None else parse_metadata(item, metadata)}
        for item, metadata in payloads
    ]
    require_small_response(items)
    return {"items": items, "next_cursor": next_cursor}


def _describe_index(index: SearchIndex, services: Services) -> dict[str, Any]:
    """Return an index's description (settings, counts and state), with the names of its encoder's prompts.

    `prompts` is None if the index's encoder is not ready here.
    """
    engine = None if index.spec.encoder is None else services.embedder.engines.get(index.spec.encoder)
    info = None if engine is None else engine.info
    prompts = None if info is None else {side: info.find_side_prompt(side) for side in SIDE_PROMPTS}
    return index.describe() | {"prompts": prompts}


def _require_equal_counts(body: UpsertBody) -> None:
    items = [body.texts] if isinstance(body.texts, str) else body.texts or body.vectors or []
    counts = {"ids": len(body.ids)} | ({"texts or vectors": len(items)} if items else {})  # none is another error
    if body.metadata is not None:
        counts["metadata"] = len(body.metadata)
    if len(set(counts.values())) > 1:
        numbers = ", ".join(f"{count} {field}" for field, count in counts.items())
        raise WrongShapeError(f"there are {numbers}: give as many of each", param="ids")


def _list_metadata(body: UpsertBody, spec: IndexSpec) -> Metadata:
    """Return the metadata of each item of an upsert, with the item's text added if the index stores texts."""
    metadata: Metadata = list(body.metadata) if body.metadata is not None else [None] * len(body.ids)
    if spec.text_field is not None and body.texts is not None:
        texts = [body.texts] if isinstance(body.texts, str) else body.texts
        metadata = [(fields or {}) | {spec.text_field: text} for text, fields in zip(texts, metadata, strict=True)]
    return metadata


BYTES = "application/octet-stream"
"""Media type of a backup."""

BACKUP_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": {BYTES: BINARY}}}
BACKUP_ANSWER: dict[int | str, dict[str, Any]] = {200: {"description": "The backup", "content": {BYTES: BINARY}}}


@router.get("/{name}/backup", dependencies=ADMIN, responses=BACKUP_ANSWER)
async def back_up(name: IndexName, services: ServicesDep) -> Response:
    """Return a backup of an index, with its texts, vectors and chain, as one file.

    The index can be written meanwhile: the backup is of one moment. It takes as much disk in the state folder until it
    is sent. Indexes in Milvus or PostgreSQL are backed up by those.
    """
    services.require_indexes_writable()  # the copy is written there
    file = await run_in_threadpool(open_copy, _find_indexes_folder(services) / name)
    return stream_file(ResultFile.from_file(file), BYTES, {"content-disposition": f'attachment; filename="{name}.db"'})


@router.put("/{name}/backup", dependencies=ADMIN, openapi_extra=BACKUP_BODY)
async def restore(name: IndexName, request: Request, services: ServicesDep) -> Response:
    """Create an index from the backup in the body. Return its name and the number of its items.

    Every row is read first, and what no index can have written is refused. An index of that name must not exist. A body
    may be larger than `LATHE_MAX_BODY_BYTES`, but must arrive within `LATHE_BODY_SECONDS`.
    """
    services.require_indexes_writable()
    restoration = await run_in_threadpool(Restoration, _find_indexes_folder(services), name)
    try:
        await _write_body(request, restoration.file)
        count = await run_in_threadpool(_finish_restoration, restoration)
    finally:
        await run_in_threadpool(restoration.close)
    return await answer_json({"restored": name, "count": count})


def _find_indexes_folder(services: Services) -> Path:
    """Return the folder of the indexes, or raise `NotSupportedError` if another tool backs them up."""
    backend = services.indexes.capabilities
    if backend.backup_tool is not None:
        raise NotSupportedError(f"the indexes are in {backend.name}, which is backed up by {backend.backup_tool}")
    return services.home.indexes


async def _write_body(request: Request, file: BinaryIO) -> None:
    """Write the body of a request to a file, piece by piece, in threads.

    Raises:
        ServiceError: 499 if the client disconnects before its end, or the error of a body that cannot be decompressed.
        OSError: if the disk is full.
    """
    piece = bytearray()
    async for chunk in stream_body(request):
        piece += chunk
        if len(piece) >= PIECE_BYTES:
            await run_in_threadpool(file.write, piece)
            piece = bytearray()
    await run_in_threadpool(file.write, piece)


def _finish_restoration(restoration: Restoration) -> int:
    """Finish a restoration, and return the number of items, or raise `BadValueError` if the body is not a backup."""
    try:
        return restoration.finish()
    except (UnavailableError, ArtifactError, sqlite3.DatabaseError) as error:
        problem = convert_error(error)
        if problem.code == "disk_full":
            raise
        raise BadValueError(
            f"the body is not a backup that can be restored: {problem.message}", code="malformed_body"
        ) from None
