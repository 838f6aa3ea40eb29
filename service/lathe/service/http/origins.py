"""Protection against requests that web pages of other origins make a browser send.

A server without keys trusts every client that reaches it, and a browser on the same machine reaches it for any page.

page of another origin ── fetch(…, {mode: "no-cors"}) ──► `Origin` or `Sec-Fetch-Site` names it: 403
page whose domain resolves to 127.0.0.1 ────────────────► `Host` is still that domain: 403 (DNS rebinding)
any other program ──────────────────────────────────────► sends neither, and names the server it wants

Bodies that change something must also be declared as JSON: no page can make a browser send that type to another origin
without a preflight request (see `lathe.service.http.json_body.read_json`).
"""

import ipaddress
import re
from functools import lru_cache

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from lathe.service.errors import ForbiddenError
from lathe.service.http.middleware import get_path_below_root, is_health, send_error
from lathe.service.http.openapi import VECTOR_HEADERS
from lathe.service.settings import Settings

HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]?#]+)(?::\d+)?")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class OriginMiddleware:
    """Middleware that answers 403 to requests for unknown hosts or from pages of origins that are not allowed.

    Requests are refused before they are read or routed.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.origins = settings.cors_origins
        self.hosts = Hosts(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403 if its `Host` or the origin of the web page that sent it is not allowed.

        Health checks may name any `Host`. The origin is checked only for methods that may change something.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if not is_health(get_path_below_root(scope)) and not all(map(self.hosts.allow, hosts)):
            names = ", ".join(host.decode("latin-1")[:100] for host in hosts)
            message = f"this server does not answer to the Host {names!r}; LATHE_ALLOWED_HOSTS names allowed hosts"
            await send_error(ForbiddenError(message, code="host_not_allowed"), send)
        elif scope["method"] not in SAFE_METHODS and self._is_cross_origin(scope, hosts):
            message = "pages of this origin may not call the server; LATHE_CORS_ORIGINS names allowed origins"
            await send_error(ForbiddenError(message, code="origin_not_allowed"), send)
        else:
            await self.app(scope, receive, send)

    def _is_cross_origin(self, scope: Scope, hosts: list[bytes]) -> bool:
        """Return whether a web page of an origin that is neither this server's nor an allowed one sent the request.

        `Sec-Fetch-Site` tells, if it is there, else `Origin` is compared with `hosts`, the request's `Host` values.
        Follows Go's `CrossOriginProtection`: browsers send `Sec-Fetch-Site` to https and to loopback addresses, and
        `Origin` with every method that is not safe. A client that sends neither is not a browser.
        """
        headers = scope["headers"]
        origin = next((value for name, value in headers if name == b"origin"), None)
        site = next((value for name, value in headers if name == b"sec-fetch-site"), None)
        if site in (b"same-origin", b"none") or (site is None and origin is None):
            return False
        page_origin = (origin or b"").decode("latin-1").lower()
        if self.origins == ("*",) or page_origin in self.origins:
            return False
        return site is not None or page_origin.partition("://")[2] not in [
            host.decode("latin-1").lower() for host in hosts
        ]


class Hosts:
    """The values of the `Host` header that a server answers to.

    Loopback names and addresses are always allowed, as are the host of the settings and the names in
    LATHE_ALLOWED_HOSTS. If that holds `*`, or is empty and clients need keys, all are. Other IP addresses, which no
    page can use as its domain, are allowed unless the server is for this machine alone.
    """

    def __init__(self, settings: Settings) -> None:
        keyless = not settings.needs_key
        self.any = "*" in settings.allowed_hosts or not (keyless or settings.allowed_hosts)
        self.addresses = not keyless or settings.public_without_keys
        self.names = {settings.host.lower(), *settings.allowed_hosts}
        self.allow = lru_cache(maxsize=256)(self._allow)

    def _allow(self, header: bytes) -> bool:
        """Return whether the server answers to this value of the `Host` header, whose port is ignored.

        A malformed value is refused, unless all values are allowed.
        """
        if self.any:
            return True
        match = HOST.fullmatch(header.decode("latin-1").lower())
        if match is None:
            return False
        name = match[1].strip("[]").removesuffix(".")
        if name in self.names or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.addresses or address.is_loopback


def allow_origins(app: Starlette, origins: tuple[str, ...]) -> None:
    """Add CORS middleware to the app, so that web pages of these origins may call the server and read its headers.

    Credentials are never allowed: a page sets the key in a header itself; if browsers added cookies or passwords on
    their own, any page could act as its user.
    """
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["*"],
        allow_headers=["*"],  # clients of OpenAI's API send a dozen of their own
        expose_headers=[*VECTOR_HEADERS, "retry-after"],
    )
