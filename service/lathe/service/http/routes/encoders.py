"""Routes of encoders: serving them, and the size routes of their vectors."""

from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.chains.names import require_number
from lathe.service.encoders.engine.engine import SERVING, Engine
from lathe.service.errors import UnavailableError, UnknownNameError
from lathe.service.http.answers import answer_json
from lathe.service.http.json_body import read_json, validate_json
from lathe.service.http.openapi import ERRORS, EncoderName, SizeRouteDimensions, describe_body
from lathe.service.http.schemas import SizeRouteBody
from lathe.service.http.unknown_names import StrictRoute
from lathe.service.services import ADMIN, USE, Services, ServicesDep

router = APIRouter(route_class=StrictRoute, prefix="/encoders", tags=["encoders"], responses=ERRORS)


@router.get("", dependencies=USE)
async def list_encoders(services: ServicesDep) -> Response:
    """List the served encoders, with their state and size routes."""
    return await answer_json(await run_in_threadpool(services.describe_encoders))


@router.put("/{name}", dependencies=ADMIN, status_code=202, responses={200: {"description": "The encoder is ready."}})
async def add_encoder(name: EncoderName, services: ServicesDep) -> Response:
    """Serve an encoder that the settings or the state folder name.

    Answers 202 while it loads, 200 once it is ready.
    """
    engine = services.embedder.engines.get(services.embedder.aliases.get(name, name))
    if engine is None:
        engine = await run_in_threadpool(_start_encoder, name, services)
    return await answer_json(_describe_state(engine), 200 if engine.state in SERVING else 202)


@router.delete("/{name}", dependencies=ADMIN)
async def remove_encoder(name: EncoderName, services: ServicesDep) -> Response:
    """Stop serving an encoder until it is added again or the server restarts.

    Requests that were accepted are finished.
    """
    engine = await run_in_threadpool(_stop_encoder, name, services)
    return await answer_json(_describe_state(engine))


def _start_encoder(name: str, services: Services) -> Engine:
    """Start serving the encoder `name`, and return its engine, which still loads the model.

    The engine of an encoder that is served already is returned unchanged.
    """
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
    with services.changing_encoders:
        if name not in services.embedder.engines:
            services.embedder.add(services.make_engine(spec))
            services.residency.start()
        return services.embedder.engines[name]


def _stop_encoder(name: str, services: Services) -> Engine:
    with services.changing_encoders:
        engine = services.embedder.remove(name)
    services.trained_serving.forget(engine.spec.name)
    engine.stop(services.settings.shutdown_seconds)
    return engine


def _describe_state(engine: Engine) -> dict[str, Any]:
    return {"name": engine.spec.name, "state": engine.state}


@router.put("/{name}/dimensions/{dimensions}", dependencies=ADMIN, openapi_extra=describe_body(SizeRouteBody))
async def set_size_route(
    name: EncoderName, dimensions: SizeRouteDimensions, request: Request, services: ServicesDep
) -> Response:
    """Set the chain that answers requests for this number of dimensions of the encoder's vectors."""
    services.require_writable()
    route = await run_in_threadpool(
        _assign_size_route, name, dimensions, services, await read_json(request, services.settings)
    )
    return await answer_json(route)


def _assign_size_route(name: str, value: str, services: Services, json_body: bytes) -> dict[str, Any]:
    body = validate_json(json_body, SizeRouteBody)
    dimensions = require_number(value, "dimensions")
    engine = services.embedder.find_engine(name)
    encoder = engine.require_ready()
    services.embedder.resolver.resolve_for_encoder(encoder, body.chain, dimensions)
    services.registry.size_routes.assign(encoder.fingerprint, str(dimensions), body.chain, replace=True)
    return {"encoder": engine.spec.name, "dimensions": dimensions, "chain": body.chain}
