"""Chains: what there is, and which version is live."""

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.answers import ERRORS, json_answer
from service.bodies import PromoteBody, declared, read_json
from service.gates import promote_through_gates
from service.names import require_number
from service.registry import Pointer
from service.services import ADMIN, USE, Services, ServicesDep

router = APIRouter(prefix="/chains", tags=["chains"], responses=ERRORS)


@router.get("", dependencies=USE)
async def list_chains(services: ServicesDep) -> Response:
    """All chains, each with its versions."""
    return await json_answer(await run_in_threadpool(describe_all, services))


@router.get("/{name}", dependencies=USE)
async def show_chain(name: str, services: ServicesDep) -> Response:
    """Steps, provenance and certificate of a chain's live version, or of `name@version`."""
    return await json_answer(await run_in_threadpool(described, name, services))


@router.post("/{name}/promote", dependencies=ADMIN, openapi_extra=declared(PromoteBody))
async def promote(name: str, request: Request, services: ServicesDep) -> Response:
    """Make a version live, unless gates of its fit, of its shadow here, or of this request do not hold."""
    services.require_writable()
    body = await read_json(request, services.settings, PromoteBody)
    return await json_answer(shown(name, await run_in_threadpool(promoted, name, body, services)))


@router.post("/{name}/rollback", dependencies=ADMIN)
async def rollback(name: str, services: ServicesDep) -> Response:
    """Make the version live that was live before."""
    services.require_writable()
    return await json_answer(shown(name, await run_in_threadpool(services.places.rollback, name)))


@router.delete("/{name}/{version}", dependencies=ADMIN)
async def delete(name: str, version: str, services: ServicesDep) -> Response:
    """Remove a version for good."""
    services.require_writable()
    number = require_number(version, "version")
    await run_in_threadpool(services.registry.delete, name, number)
    return await json_answer({"deleted": f"{name}@{number}"})


def promoted(name: str, body: PromoteBody, services: Services) -> Pointer:
    """The pointer after a promotion that no gate refused, or that was forced."""
    missed = services.shadows.missed(name, body.version)
    return promote_through_gates(services.places, name, body.version, body.gates, body.force, missed)


def describe_all(services: Services) -> list[dict[str, object]]:
    """Every chain's description."""
    return [described(name, services) for name in services.registry.names()]


def described(ref: str, services: Services) -> dict[str, object]:
    """A chain's description, whether live traffic makes the version shown stale, and the version of its shadow."""
    found = services.registry.describe(ref)
    stale = services.drift.stale(f"{found['name']}@{found['version']}")
    return found | {"stale": stale, "shadow": services.shadows.candidate(found["name"])}


def shown(name: str, pointer: Pointer) -> dict[str, object]:
    """A pointer's JSON."""
    return {
        "name": name,
        "live": pointer.live,
        "earlier": list(pointer.earlier),
        "forced": list(pointer.past),
    }
