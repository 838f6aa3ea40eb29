"""Routes of encoders: serving them, the size routes of their vectors, and the versions of those that were trained.

Versions are listed, promoted, rolled back and deleted.
"""

import time
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.chains.names import parse_parameter_number
from lathe.service.chains.pointer import Pointer
from lathe.service.chains.version_folder import promote_with_gates
from lathe.service.encoders.engine.engine import SERVING, Engine
from lathe.service.errors import ConflictError, ServiceError, UnavailableError, UnknownNameError
from lathe.service.http.answers import answer_json
from lathe.service.http.json_body import read_json, validate_json
from lathe.service.http.openapi import ERRORS, EncoderName, Force, SizeRouteDimensions, VersionNumber, describe_body
from lathe.service.http.queueing import queue_reindex
from lathe.service.http.routing import StrictRoute
from lathe.service.http.schemas import EncoderPromoteBody, SizeRouteBody
from lathe.service.index.spec import ReindexRequest
from lathe.service.services import ADMIN, USE, Services, ServicesDep
from lathe.training.finetuning.requests import check_encoder_gates

router = APIRouter(route_class=StrictRoute, prefix="/encoders", tags=["encoders"], responses=ERRORS)


@router.get("", dependencies=USE)
async def list_encoders(services: ServicesDep) -> Response:
    """Return the served encoders, each with its state and its size routes.

    A size route says which chain answers requests for a number of dimensions.
    """
    return await answer_json(await run_in_threadpool(services.describe_encoders))


@router.put("/{name}", dependencies=ADMIN, status_code=202, responses={200: {"description": "The encoder is ready."}})
async def add_encoder(name: EncoderName, services: ServicesDep) -> Response:
    """Serve an encoder that the settings or the state folder name, and return its name and state.

    Answers 202 while it loads, 200 once it is ready.
    """
    engine = services.embedder.engines.get(services.embedder.aliases.get(name, name))
    if engine is None:
        engine = await run_in_threadpool(_start_encoder, name, services)
    return await answer_json({"name": engine.spec.name, "state": engine.state}, 200 if engine.state in SERVING else 202)


@router.delete("/{name}", dependencies=ADMIN)
async def remove_encoder(name: EncoderName, services: ServicesDep) -> Response:
    """Stop serving an encoder until it is added again or the server restarts. Return its name and state.

    Requests that were accepted are finished.
    """
    engine = await run_in_threadpool(_stop_encoder, name, services)
    return await answer_json({"name": engine.spec.name, "state": engine.state})


def _start_encoder(name: str, services: Services) -> Engine:
    """Start serving the encoder `name` unless it is served, and return its engine, which may still load the model."""
    try:
        spec = services.settings.find_encoder_spec(name)
    except ValueError as error:  # the file of added encoders is damaged
        raise UnavailableError(str(error), code="state_unreadable") from None
    if spec is None:
        names = ", ".join(spec.name for spec in services.settings.specs)
        raise UnknownNameError(
            f"there is no encoder {name!r} in the settings or the state folder; there are: {names} "
            "(to add one, run `lathe encoders add` on the server's machine)",
            param="encoder",
        )

    if "@" in spec.name:  # a version of a trained encoder
        return services.trained_serving.request(spec)
    with services.trained_serving.changing:
        # Looked up again under the lock: another request may have started it.
        if name not in services.embedder.engines:
            services.embedder.add(services.make_engine(spec))
            services.residency.start()
        return services.embedder.engines[name]


def _stop_encoder(name: str, services: Services) -> Engine:
    with services.trained_serving.changing:
        engine = services.embedder.remove(name)
    services.trained_serving.forget(engine.spec.name)
    engine.stop(services.settings.shutdown_seconds)
    return engine


@router.put("/{name}/dimensions/{dimensions}", dependencies=ADMIN, openapi_extra=describe_body(SizeRouteBody))
async def set_size_route(
    name: EncoderName, dimensions: SizeRouteDimensions, request: Request, services: ServicesDep
) -> Response:
    """Set the chain that answers requests for this number of dimensions of the encoder's vectors.

    The answer is the new setting.
    """
    services.require_writable()
    route = await run_in_threadpool(
        _assign_size_route, name, dimensions, services, await read_json(request, services.settings)
    )
    return await answer_json(route)


def _assign_size_route(name: str, route: str, services: Services, json_body: bytes) -> dict[str, Any]:
    body = validate_json(json_body, SizeRouteBody)
    dimensions = parse_parameter_number(route, "dimensions")
    engine = services.embedder.find_engine(name)
    encoder = engine.get_ready_info()
    services.embedder.resolver.resolve_for_encoder(encoder, body.chain, dimensions)
    services.registry.size_routes.assign(encoder.fingerprint, str(dimensions), body.chain, replace=True)
    return {"encoder": engine.spec.name, "dimensions": dimensions, "chain": body.chain}


READY_SECONDS = 120.0
"""Maximum seconds that a promotion with `reindex` waits until the new version is ready."""


@router.get("/{name}/versions", dependencies=USE)
async def list_versions(name: EncoderName, services: ServicesDep) -> Response:
    """Return the versions of a trained encoder, which of them is live, and the certificate of each.

    The certificate is the measured quality.
    """
    return await answer_json(await run_in_threadpool(services.trained.describe, name))


@router.post("/{name}/promote", dependencies=ADMIN, openapi_extra=describe_body(EncoderPromoteBody))
async def promote(name: EncoderName, request: Request, services: ServicesDep) -> Response:
    """Make a version of a trained encoder live if it passes its gates (thresholds on measures).

    The gates of its training and of this request apply. The server starts the version, and answers the name by the
    last version until the new one is ready. The answer names the version that is live; `indexes` lists the indexes of
    other versions, with the request that re-encodes each; with `reindex` these are sent.
    """
    services.require_writable()
    answer = await run_in_threadpool(_promote, name, services, await read_json(request, services.settings))
    return await answer_json(answer)


@router.post("/{name}/rollback", dependencies=ADMIN)
async def rollback(name: EncoderName, services: ServicesDep) -> Response:
    """Make the version of a trained encoder live that was live before. Return it, and the indexes of other versions."""
    services.require_writable()
    roll_back = services.trained.rollback
    return await answer_json(await run_in_threadpool(lambda: _apply_pointer(name, roll_back(name), services)))


@router.delete("/{name}/versions/{version}", dependencies=ADMIN)
async def delete(name: EncoderName, version: VersionNumber, services: ServicesDep, force: Force = False) -> Response:
    """Delete a version of a trained encoder permanently. Return `{"deleted": "name@1"}`.

    A version that an index uses is deleted only with `force`.
    """
    services.require_writable()
    number = parse_parameter_number(version, "version")
    await run_in_threadpool(_delete, name, number, services, force)
    return await answer_json({"deleted": f"{name}@{number}"})


def _promote(name: str, services: Services, json_body: bytes) -> dict[str, Any]:
    """Make the version in a JSON body live if it passes its gates. Return it with the indexes of other versions.

    With `reindex`, the reindexing of these indexes is queued.
    """
    body = validate_json(json_body, EncoderPromoteBody)
    pointer = promote_with_gates(
        services.trained, name, body.version, body.gates, body.force, require_known_gates=check_encoder_gates
    )
    answer = _apply_pointer(name, pointer, services)
    if body.reindex:
        _reindex_with(f"{name}@{pointer.live}", answer["indexes"], services)
    return answer


def _apply_pointer(name: str, pointer: Pointer, services: Services) -> dict[str, Any]:
    """Start the engine of the live version. Return the version, the engine's state and indexes of other versions."""
    ref = f"{name}@{pointer.live}"
    services.trained_serving.stopped.discard(ref)
    services.trained_serving.update()
    engine = services.embedder.engines.get(ref)
    state = engine.state if engine else None
    indexes = _list_other_indexes(name, ref, services)
    return {"name": name} | pointer.to_json() | {"state": state, "indexes": indexes}


def _list_other_indexes(name: str, ref: str, services: Services) -> list[dict[str, Any]]:
    """List the indexes of other versions of an encoder, or of its base, each with the request that reindexes it."""
    base = services.trained.manifest(name, int(ref.partition("@")[2])).get("base") or {}
    others = []
    for index in services.indexes.describe():
        encoder = index.get("encoder")
        is_version = isinstance(encoder, str) and encoder.partition("@")[0] == name and encoder != ref
        if is_version or (encoder is not None and encoder == base.get("name")):
            request = {"method": "POST", "path": f"/indexes/{index['name']}/reindex", "body": {"encoder": ref}}
            others.append({"index": index["name"], "encoder": encoder, "request": request})
    return others


def _reindex_with(ref: str, others: list[dict[str, Any]], services: Services) -> None:
    """Queue the reindexing of each listed index, and add the job's id, or the error, to the entry."""
    deadline = time.monotonic() + READY_SECONDS
    engine = services.embedder.engines.get(ref)
    while others and engine is not None and engine.state not in SERVING and time.monotonic() < deadline:
        time.sleep(0.1)
    for entry in others:
        try:
            entry["job_id"] = queue_reindex(entry["index"], services, ReindexRequest(encoder=ref)).id
        except ServiceError as error:  # the others are reindexed all the same
            entry["error"] = error.message


def _delete(name: str, version: int, services: Services, force: bool) -> None:
    ref = f"{name}@{version}"
    users = [index["name"] for index in services.indexes.describe() if index.get("encoder") == ref]
    if users and not force:
        raise ConflictError(
            f"{ref} is used by the indexes {', '.join(users)}; to delete it all the same, use ?force=true",
            param="version",
            code="encoder_in_use",
        )
    services.trained.delete(name, version)
    services.trained_serving.requested.discard(ref)
    services.trained_serving.update()
