"""Routes that back an index of the state folder up into one file, and restore one from such a file.

The file is the index's record, the `record.db` of `lathe index backup`. It may be larger than memory, so neither route
holds it there.
"""

import sqlite3
from pathlib import Path
from typing import Any, BinaryIO

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.errors import BadValueError, NotSupportedError, UnavailableError, convert_error
from lathe.service.http.answers import answer_json, stream_file
from lathe.service.http.openapi import BINARY, ERRORS, IndexName
from lathe.service.http.request_body import stream_body
from lathe.service.http.unknown_names import StrictRoute
from lathe.service.index.embedded.backup import Restoration, open_copy
from lathe.service.jobs.jobs import PIECE_BYTES, ResultFile
from lathe.service.services import ADMIN, Services, ServicesDep
from lathe.transforms.errors import ArtifactError

router = APIRouter(route_class=StrictRoute, prefix="/indexes", tags=["indexes"], responses=ERRORS)

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
    file = await run_in_threadpool(open_copy, _find_folder(services) / name)
    return stream_file(ResultFile.from_file(file), BYTES, {"content-disposition": f'attachment; filename="{name}.db"'})


@router.put("/{name}/backup", dependencies=ADMIN, openapi_extra=BACKUP_BODY)
async def restore(name: IndexName, request: Request, services: ServicesDep) -> Response:
    """Create an index from the backup in the body.

    Every row is read first, and what no index can have written is refused. An index of that name must not exist. A body
    may be larger than `LATHE_MAX_BODY_BYTES`, but must arrive within `LATHE_BODY_SECONDS`.
    """
    services.require_indexes_writable()
    restoration = await run_in_threadpool(Restoration, _find_folder(services), name)
    try:
        await _write_body(request, restoration.file)
        count = await run_in_threadpool(_finish, restoration)
    finally:
        await run_in_threadpool(restoration.close)
    return await answer_json({"restored": name, "count": count})


def _find_folder(services: Services) -> Path:
    """Return the folder of the indexes.

    Raises:
        NotSupportedError: if the indexes are in a backend that another tool backs up.
    """
    backend = services.indexes.capabilities
    if backend.backup_tool is not None:
        raise NotSupportedError(f"the indexes are in {backend.name}, which is backed up by {backend.backup_tool}")
    return services.home.indexes


async def _write_body(request: Request, file: BinaryIO) -> None:
    """Write the body of a request to a file in pieces, in threads.

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


def _finish(restoration: Restoration) -> int:
    """Finish a restoration, and return the number of its items. A body that is no sound record is a client's error."""
    try:
        return restoration.finish()
    except (UnavailableError, ArtifactError, sqlite3.DatabaseError) as error:
        problem = convert_error(error)
        if problem.code == "disk_full":
            raise
        raise BadValueError(
            f"the body is no backup that can be restored: {problem.message}", code="malformed_body"
        ) from None
