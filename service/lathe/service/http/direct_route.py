"""Routes whose endpoints are called without FastAPI's solving of dependencies.

The solving, and the stacks that FastAPI enters for it, take more time than a request whose text is cached, or a search
of one vector.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lathe.service.http.unknown_names import StrictRoute
from lathe.service.services import Services


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
