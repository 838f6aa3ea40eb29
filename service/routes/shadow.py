"""A candidate version of a chain beside the live one."""

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.answers import ERRORS, json_answer
from service.bodies import ShadowBody, declared, read_json
from service.live.plan import Plan
from service.services import ADMIN, USE, Services, ServicesDep

router = APIRouter(prefix="/chains/{name}/shadow", tags=["chains"], responses=ERRORS)


@router.put("", dependencies=ADMIN, openapi_extra=declared(ShadowBody))
async def start_shadow(name: str, request: Request, services: ServicesDep) -> Response:
    """Try a version beside the live one, on a share of the rows this process serves; replaces an earlier shadow."""
    body = await read_json(request, services.settings, ShadowBody)
    return await json_answer(await run_in_threadpool(started, name, body, services))


@router.get("", dependencies=USE)
async def show_shadow(name: str, services: ServicesDep) -> Response:
    """How the candidate compares so far."""
    return await json_answer(await run_in_threadpool(reported, name, services))


@router.delete("", dependencies=ADMIN)
async def stop_shadow(name: str, services: ServicesDep) -> Response:
    """End the shadow and forget its rows and figures."""
    await run_in_threadpool(services.shadows.stop, name)
    return await json_answer({"deleted": f"the shadow of {name}"})


def started(name: str, body: ShadowBody, services: Services) -> dict[str, object]:
    """Start one; what it says at first."""
    return services.shadows.start(name, body.version, Plan(body.share, body.k, body.rows, body.gates)).report()


def reported(name: str, services: Services) -> dict[str, object]:
    """What a chain's shadow says now."""
    return services.shadows.of(name).report()
