"""A server whose routes lie below a path prefix: https://example.org/lathe/embed for /embed.

proxy that passes the path on ── /lathe/embed ──┐
                                                ├──► the path with `root_path`, which Starlette takes off for routing
proxy that strips the prefix ─── /embed ────────┘    and keeps in redirects and in the OpenAPI document
"""

from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPathMiddleware:
    """Middleware that puts a prefix before the path of each request that does not begin with it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app = app
        self.root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app with `root_path` in the scope, and put that prefix before a path that lacks it."""
        if scope["type"] == "http":
            path = scope["path"]
            if not (path == self.root_path or path.startswith(f"{self.root_path}/")):
                path = self.root_path + path
            scope = {**scope, "path": path, "root_path": self.root_path}
        await self.app(scope, receive, send)


def get_path_below_root(scope: Scope) -> str:
    """Return the path of a request without the server's path prefix, which is `root_path` in the scope.

    Ray Serve sets `root_path`, too.
    """
    path: str = scope["path"]
    root_path = scope.get("root_path", "")
    return path.removeprefix(root_path) if root_path and path.startswith(f"{root_path}/") else path


def require_distinct(root_path: str, routes: Iterable[str]) -> None:
    """Raise `ValueError` if a route begins with the same segment as the prefix `root_path`.

    A request could then mean two routes.

    Args:
        root_path: the prefix, such as `/lathe`.
        routes: paths of the server's routes.
    """
    first_segment = root_path.split("/")[1]
    route_segments = {route.split("/")[1] for route in routes}
    if first_segment in route_segments:
        raise ValueError(f"LATHE_ROOT_PATH is {root_path}, and the server has routes that begin with /{first_segment}")
