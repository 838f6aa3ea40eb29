"""Shadows: a candidate version of a chain beside the live one."""

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.http.answers import answer_json
from lathe.service.http.json_body import read_json, validate_json
from lathe.service.http.openapi import ERRORS, describe_body
from lathe.service.http.schemas import ShadowBody
from lathe.service.monitoring.shadow.plan import ShadowPlan
from lathe.service.services import ADMIN, USE, Services, ServicesDep

router = APIRouter(prefix="/chains/{name}/shadow", tags=["chains"], responses=ERRORS)


@router.put("", dependencies=ADMIN, openapi_extra=describe_body(ShadowBody))
async def start_shadow(name: str, request: Request, services: ServicesDep) -> Response:
    """Compare a version with the live one on a share of the rows this process serves; it replaces an earlier shadow."""
    report = await run_in_threadpool(_start_shadow, name, services, await read_json(request, services.settings))
    return await answer_json(report)


@router.get("", dependencies=USE)
async def show_shadow(name: str, services: ServicesDep) -> Response:
    """Show how the shadow compares with the live version so far."""
    return await answer_json(await run_in_threadpool(lambda: services.shadows.get(name).report()))


@router.delete("", dependencies=ADMIN)
async def stop_shadow(name: str, services: ServicesDep) -> Response:
    """Stop the shadow and discard its rows and figures."""
    await run_in_threadpool(services.shadows.stop, name)
    return await answer_json({"deleted": f"the shadow of {name}"})


def _start_shadow(name: str, services: Services, json_body: bytes) -> dict[str, object]:
    """Start the shadow of a chain and return its first report; raise `ServiceError` if body or version is not valid."""
    body = validate_json(json_body, ShadowBody)
    return services.shadows.start(name, body.version, ShadowPlan(body.share, body.k, body.rows, body.gates)).report()
