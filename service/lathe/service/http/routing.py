"""Classes of routes, and the unknown names of requests: what they seem to mean, and whether they are refused.

A `DirectRoute` leaves out FastAPI's solving of dependencies. The solving, and the stacks that FastAPI enters for it,
take more time than a request whose text is cached, or a search of one vector.
"""

import re
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lathe.service.errors import BadValueError
from lathe.service.services import Services
from lathe.training.json_object import find_field

MAX_UNKNOWN = 1000
"""Maximum number of unknown names that are each compared with the known ones, which takes some 25 µs."""
MAX_NAMES = 20
"""Maximum number of names in the header `x-ignored-fields`."""
UNSAFE = re.compile(r"[^A-Za-z0-9_.:-]")
"""Characters of a client's names that a header is not given."""


class StrictRoute(APIRoute):
    """Route that refuses query parameters that its OpenAPI description does not name."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the coroutine function that handles a request.

        It raises `BadValueError` for an unknown query parameter.
        """
        answer = super().get_route_handler()
        described = (self.openapi_extra or {}).get("parameters", [])
        allowed = {parameter.alias for parameter in self.dependant.query_params}
        allowed |= {parameter["name"] for parameter in described if parameter["in"] == "query"}

        async def handle(request: Request) -> Response:
            for name in request.query_params if request.scope["query_string"] else ():
                if name not in allowed:
                    similar = find_field(name, allowed)
                    takes = f"there are {', '.join(sorted(allowed))}" if allowed else "there are none"
                    advice = f"did you mean {similar}?" if similar else takes
                    raise BadValueError(f"{name}: unknown query parameter; {advice}", param=name)
            return await answer(request)

        return handle


def list_ignored_parameters(request: Request, allowed: Collection[str], fields: Collection[str]) -> list[str]:
    """Return the names of a request's unknown query parameters.

    They are ignored because clients of other services send them.

    Args:
        request: the request.
        allowed: names of the query parameters that are read.
        fields: fields of the body.

    Raises:
        BadValueError: for a name that seems to mean a known parameter, or is a field of the body.
    """
    if not request.scope["query_string"]:
        return []
    known = {*allowed, *fields}
    unknown = [name for name in request.query_params if name not in allowed]
    for name in unknown:
        if name in fields:
            raise BadValueError(f"{name}: unknown query parameter; send it in the body", param=name)
        if similar := find_field(name, known):
            raise BadValueError(f"{name}: unknown query parameter; did you mean {similar}?", param=name)
    return unknown


def name_ignored(response: Response, ignored: Collection[str]) -> Response:
    """Add a header `x-ignored-fields` that lists ignored fields, if there are any, and return the response.

    The log has the header too. At most `MAX_NAMES` are named.
    """
    if ignored:
        names = [UNSAFE.sub("?", name[:40]) for name in list(ignored)[:MAX_NAMES]]
        response.headers["x-ignored-fields"] = ", ".join(names) + (", ..." if len(ignored) > MAX_NAMES else "")
    return response


class DirectRoute(APIRoute):
    """Route whose endpoint is called with the request, the services and the path's parameters.

    The request's key is checked for use first.

    Raises:
        ValueError: if the route has dependencies, which would not be called.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        if self.dependencies:
            raise ValueError(f"{self.path} is a DirectRoute: it calls no dependencies")
        answer = self.get_route_handler()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive, send)
            response = await answer(request)
            await response(scope, receive, send)

        self.app = app

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the coroutine function that checks a request's key and calls the endpoint."""

        async def answer(request: Request) -> Response:
            services: Services = request.scope["app"].state.services
            services.keys.require_use(request)
            response: Response = await self.endpoint(request=request, services=services, **request.path_params)
            return response

        return answer


class StrictDirectRoute(StrictRoute, DirectRoute):
    """Direct route that refuses query parameters that its OpenAPI description does not name."""
