"""The dashboard's page and what it is made of."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.dashboard.assets import assets
from service.errors import UnknownNameError
from service.http.pages import page_headers

router = APIRouter(include_in_schema=False)

SOURCES = {"default": "'none'", **dict.fromkeys(("script", "style", "img", "connect"), "'self'")}
"""Nothing from elsewhere and nothing inline runs."""

NO_MARKUP = "require-trusted-types-for 'script'"
"""No text becomes markup."""

HEADERS = page_headers(SOURCES, NO_MARKUP) | {
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # a browser may keep it, and asks each time whether it is still the same
}


@router.get("/")
@router.head("/")
async def page(request: Request) -> Response:
    """The dashboard; needs no key, for it holds nothing."""
    return sent("index.html", request)


@router.get("/dashboard/{name}")
@router.head("/dashboard/{name}")
async def asset(name: str, request: Request) -> Response:
    """One of its files."""
    return sent(name, request)


def sent(name: str, request: Request) -> Response:
    """A file, or 304 where the browser has it.

    Raises:
        UnknownNameError: if there is none of that name.
    """
    found = assets().get(name)
    if found is None:
        raise UnknownNameError(f"the dashboard has no file {name[:80]!r}")
    headers = HEADERS | {"etag": found.etag}
    if found.is_known(request.headers.get("if-none-match", "")):
        return Response(None, 304, headers)
    return Response(found.content, 200, headers, media_type=found.media_type)
