"""Distance of live traffic from the vectors that a chain was fitted on."""

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from lathe.service.http.answers import answer_json
from lathe.service.http.openapi import ERRORS
from lathe.service.http.query_parameters import StrictRoute
from lathe.service.services import USE, ServicesDep

router = APIRouter(route_class=StrictRoute, prefix="/chains", tags=["chains"], responses=ERRORS)


@router.get("/{name}/drift", dependencies=USE)
async def show_drift(name: str, services: ServicesDep) -> Response:
    """Show the drift of a chain's live version, or of `name@version`, by encoder; `unknown` says why there is none."""
    return await answer_json(await run_in_threadpool(lambda: services.drift.report(services.registry.load(name))))
