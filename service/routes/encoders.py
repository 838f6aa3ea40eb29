"""Encoders, and which chain answers which size of theirs."""

from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.answers import ERRORS, json_answer
from service.bodies import PlaceBody, declared, read_json
from service.engine import Engine
from service.names import require_number
from service.services import ADMIN, USE, Services, ServicesDep

router = APIRouter(prefix="/encoders", tags=["encoders"], responses=ERRORS)


@router.get("", dependencies=USE)
async def list_encoders(services: ServicesDep) -> Response:
    """The encoders hosted, with their places."""
    return await json_answer(await run_in_threadpool(describe_encoders, services))


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
        encoder = engine.encoder
        described: dict[str, Any] = {"name": engine.spec.name, "model": engine.spec.model, "state": engine.state}
        if encoder is not None:
            mine = dict(places.get(encoder.fingerprint, {}))
            described |= encoder.describe() | {
                "device": encoder.device,
                "nested": mine.pop("nested", None),
                "places": mine,
            }
        found.append(described | ({"problem": engine.problem} if engine.problem else {}))
    return found
