"""Encoders, and which chain answers which size of theirs."""

from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.answers import ERRORS, json_answer
from service.bodies import PlaceBody, declared, read_json
from service.engine.engine import Engine
from service.errors import UnavailableError, UnknownNameError
from service.names import require_number
from service.services import ADMIN, USE, Services, ServicesDep

router = APIRouter(prefix="/encoders", tags=["encoders"], responses=ERRORS)


@router.get("", dependencies=USE)
async def list_encoders(services: ServicesDep) -> Response:
    """The encoders hosted, with their places."""
    return await json_answer(await run_in_threadpool(describe_encoders, services))


@router.put("/{name}", dependencies=ADMIN, status_code=202)
async def add_encoder(name: str, services: ServicesDep) -> Response:
    """Serve an encoder that the settings or the state folder name; 202 while it loads, 200 if it is served already."""
    served = services.embedder.engines.get(name)
    if served is None:
        served = await run_in_threadpool(start_encoder, name, services)
    return await json_answer(described_state(served), 200 if served.state == "ready" else 202)


@router.delete("/{name}", dependencies=ADMIN)
async def remove_encoder(name: str, services: ServicesDep) -> Response:
    """Serve an encoder no longer, until it is added again or the server starts anew; finishes what it accepted."""
    engine = await run_in_threadpool(stop_encoder, name, services)
    return await json_answer(described_state(engine))


def start_encoder(name: str, services: Services) -> Engine:
    """Begin to serve an encoder.

    Raises:
        UnknownNameError: for one that nobody allowed.
    """
    try:
        spec = services.settings.spec_now(name)
    except ValueError as error:  # the file of added encoders is damaged
        raise UnavailableError(str(error), code="state_unreadable") from None
    if spec is None:
        raise UnknownNameError(
            f"the settings name no encoder {name!r}; they name {', '.join(s.name for s in services.settings.specs)} "
            "(`lathe encoders add` on the server's machine adds one)",
            param="encoder",
        )
    with services.changing_encoders:
        if name not in services.embedder.engines:
            services.embedder.add(services.make_engine(spec))
        return services.embedder.engines[name]


def stop_encoder(name: str, services: Services) -> Engine:
    """Take an encoder out of service and end it; errors as `Embedder.remove`."""
    with services.changing_encoders:
        engine = services.embedder.remove(name)
    engine.stop(services.settings.shutdown_seconds)
    return engine


def described_state(engine: Engine) -> dict[str, Any]:
    """What a change of the encoders answers."""
    return {"name": engine.spec.name, "state": engine.state}


@router.put("/{name}/dimensions/{dimensions}", dependencies=ADMIN, openapi_extra=declared(PlaceBody))
async def place_chain(name: str, dimensions: str, request: Request, services: ServicesDep) -> Response:
    """Let a chain answer a size."""
    services.require_writable()
    body = await read_json(request, services.settings, PlaceBody)
    size = require_number(dimensions, "dimensions")
    engine = services.embedder.engine(name)
    await run_in_threadpool(assign, services, engine, size, body.chain)
    return await json_answer({"encoder": engine.spec.name, "dimensions": size, "chain": body.chain})


def assign(services: Services, engine: Engine, dimensions: int, chain: str) -> None:
    """Check that the chain serves the encoder and the size, then place it."""
    encoder = engine.require_ready()
    services.embedder.targets.of_encoder(encoder, chain, dimensions)
    services.places.assign(encoder.fingerprint, str(dimensions), chain, replace=True)


def describe_encoders(services: Services) -> list[dict[str, Any]]:
    """Each encoder's JSON."""
    places = services.places.read()
    found = []
    for engine in services.embedder.engines.values():
        described: dict[str, Any] = {"name": engine.spec.name, "model": engine.spec.model, "state": engine.state}
        if engine.info is not None:
            mine = dict(places.get(engine.info.fingerprint, {}))
            described |= engine.info.describe() | {
                "workers": len(engine.ready_lanes),
                "nested": mine.pop("nested", None),
                "places": mine,
            }
        found.append(described | ({"problem": engine.problem} if engine.problem else {}))
    return found
