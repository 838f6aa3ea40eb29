"""The dashboard's page and the files it loads."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.dashboard.assets import read_assets
from lathe.service.errors import UnknownNameError
from lathe.service.http.pages import build_page_headers

router = APIRouter(include_in_schema=False)

SOURCES = {"default": "'none'", **dict.fromkeys(("script", "style", "img", "connect"), "'self'")}
"""The page loads from this server only, and runs no inline script."""

NO_MARKUP = "require-trusted-types-for 'script'"
"""Directive by which browsers refuse to turn text into markup."""

HEADERS = build_page_headers(SOURCES, NO_MARKUP) | {
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # a browser may keep it, and asks each time whether it is still the same
}


@router.get("/")
@router.head("/")
async def show_page(request: Request) -> Response:
    """Serve the dashboard's page; it needs no key, as it holds no data."""
    return _respond("index.html", request)


@router.get("/dashboard/{name}")
@router.head("/dashboard/{name}")
async def show_asset(name: str, request: Request) -> Response:
    """Serve a file that the dashboard's page loads."""
    return _respond(name, request)


def _respond(name: str, request: Request) -> Response:
    """Return the response with a file of the dashboard, or 304 if the browser has the file."""
    asset = read_assets().get(name)
    if asset is None:
        raise UnknownNameError(f"the dashboard has no file {name[:80]!r}")
    headers = HEADERS | {"etag": asset.etag}
    if asset.matches(request.headers.get("if-none-match", "")):
        return Response(None, 304, headers)
    return Response(asset.content, 200, headers, media_type=asset.media_type)
