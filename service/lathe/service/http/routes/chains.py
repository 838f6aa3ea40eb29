"""Routes of chains: listing, drift of live traffic, promotion, rollback and deletion of their versions."""

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.chains.names import parse_parameter_number
from lathe.service.chains.pointer import Pointer
from lathe.service.chains.usage import delete_version
from lathe.service.chains.version_folder import promote_with_gates
from lathe.service.http.answers import answer_json
from lathe.service.http.json_body import read_json, validate_json
from lathe.service.http.openapi import ERRORS, ChainName, ChainReference, Force, VersionNumber, describe_body
from lathe.service.http.routing import StrictRoute
from lathe.service.http.schemas import PromoteBody
from lathe.service.services import ADMIN, USE, Services, ServicesDep

router = APIRouter(route_class=StrictRoute, prefix="/chains", tags=["chains"], responses=ERRORS)


@router.get("/{name}/drift", dependencies=USE)
async def show_drift(name: ChainReference, services: ServicesDep) -> Response:
    """Show how far requests have drifted from the rows that a chain was fitted on, by encoder.

    It is the drift of the live version, or of `name@version`. Where it is not known, `unknown` says why.
    """
    return await answer_json(await run_in_threadpool(lambda: services.drift.report(services.registry.load(name))))


@router.get("", dependencies=USE)
async def list_chains(services: ServicesDep) -> Response:
    """Return all chains of transforms, each with its versions."""
    names = services.registry.names
    return await answer_json(await run_in_threadpool(lambda: [_describe_chain(name, services) for name in names()]))


@router.get("/{name}", dependencies=USE)
async def show_chain(name: ChainReference, services: ServicesDep) -> Response:
    """Return the steps, provenance and certificate of a chain's live version, or of `name@version`, and all versions.

    The certificate is the measured quality.
    """
    return await answer_json(await run_in_threadpool(_describe_chain, name, services))


@router.post("/{name}/promote", dependencies=ADMIN, openapi_extra=describe_body(PromoteBody))
async def promote(name: ChainName, request: Request, services: ServicesDep) -> Response:
    """Make a version of a chain live if it passes its gates (thresholds on measures). Return which version is live.

    The gates of its fit and of this request apply.
    """
    services.require_writable()
    pointer = await run_in_threadpool(_promote, name, services, await read_json(request, services.settings))
    return await answer_json({"name": name} | pointer.to_json())


@router.post("/{name}/rollback", dependencies=ADMIN)
async def rollback(name: ChainName, services: ServicesDep) -> Response:
    """Make the version of a chain live that was live before. Return which version is live now."""
    services.require_writable()
    pointer = await run_in_threadpool(services.registry.rollback, name)
    return await answer_json({"name": name} | pointer.to_json())


@router.delete("/{name}/{version}", dependencies=ADMIN)
async def delete(name: ChainName, version: VersionNumber, services: ServicesDep, force: Force = False) -> Response:
    """Delete a version of a chain permanently. Return `{"deleted": "name@1"}`.

    A version that a size route, an index or a column of PostgreSQL uses is deleted only with `force`.
    """
    services.require_writable()
    number = parse_parameter_number(version, "version")
    registry, uses = services.registry, services.home.uses
    await run_in_threadpool(delete_version, registry, name, number, force, uses, services.indexes.describe)
    return await answer_json({"deleted": f"{name}@{number}"})


def _promote(name: str, services: Services, json_body: bytes) -> Pointer:
    body = validate_json(json_body, PromoteBody)
    return promote_with_gates(services.registry, name, body.version, body.gates, body.force)


def _describe_chain(ref: str, services: Services) -> dict[str, object]:
    """Return the description of a chain's versions, with `stale`: whether live traffic has drifted from the fit."""
    description = services.registry.describe(ref)
    return description | {"stale": services.drift.is_stale(f"{description['name']}@{description['version']}")}
