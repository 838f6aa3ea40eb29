"""How far live traffic lies from what a chain was fitted on."""

from dataclasses import replace

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.answers import ERRORS, OUT_OF_DOMAIN, json_answer
from service.embedder import Answer
from service.errors import BadValueError
from service.services import USE, ServicesDep
from transforms.errors import ArtifactError

router = APIRouter(prefix="/chains", tags=["chains"], responses=ERRORS)

ASKED = {"true": True, "1": True, "false": False, "0": False}
PARAMETERS = [
    {
        "name": name,
        "in": place,
        "schema": {"type": "boolean"},
        "description": f"whether to answer {OUT_OF_DOMAIN}",
    }
    for name, place in (("x-drift", "header"), ("drift", "query"))
]
"""The OpenAPI of what `asked` reads."""


@router.get("/{name}/drift", dependencies=USE)
async def show_drift(name: str, services: ServicesDep) -> Response:
    """Figures for the live version of a chain, or for `name@version`, by encoder; `unknown` says why there are none."""
    return await json_answer(await run_in_threadpool(lambda: services.drift.report(services.registry.load(name))))


def asked(request: Request) -> bool:
    """Whether a request for vectors wants to know how far they lie from the fitted ones.

    Raises:
        BadValueError: for anything but true and false.
    """
    wanted = request.headers.get("x-drift", request.query_params.get("drift", "false"))
    if wanted.lower() not in ASKED:
        raise BadValueError(f"drift is true or false, not {wanted[:40]!r}", param="drift")
    return ASKED[wanted.lower()]


def told(answer: Answer) -> Answer:
    """The answer with the mean percentile of its rows among those held out when the chain was fitted."""
    reference = answer.target.loaded.reference if answer.target.loaded else None
    if answer.raw is None or reference is None or isinstance(reference, ArtifactError):
        return replace(answer, out_of_domain="unknown")
    gaussian = reference.gaussian
    ranks = reference.quantile_ranks(gaussian.score(gaussian.standardize(answer.raw)))
    return replace(answer, out_of_domain=f"{ranks.mean():.3f}")
