"""The dashboard's page and the files it loads."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePath

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from lathe.service.errors import UnknownNameError

router = APIRouter(include_in_schema=False)

POLICY = (
    "default-src 'none'",
    *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
    *(f"{name} 'none'" for name in ("base-uri", "form-action", "frame-ancestors")),
    "require-trusted-types-for 'script'",  # browsers refuse to turn text into markup
)
"""Content security policy: the page loads from this server only, and runs no inline script. No page may frame it."""

HEADERS = {
    "content-security-policy": "; ".join(POLICY),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # a browser may keep it, and asks each time whether it is still the same
}

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    "": "text/plain; charset=utf-8",  # the licence of what others wrote
}


@router.get("/")
@router.head("/")
async def show_page(request: Request) -> Response:
    """Return the dashboard's page, which needs no key because it holds no data."""
    return _respond("index.html", request)


@router.get("/dashboard")
@router.get("/dashboard/")
async def redirect_to_page(request: Request) -> Response:
    """Redirect to the page, which is at the root because it loads files by relative paths."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/")


@router.get("/dashboard/{name:path}")
@router.head("/dashboard/{name:path}")
async def show_asset(name: str, request: Request) -> Response:
    """Return a file that the dashboard's page loads, such as a script."""
    return _respond(name, request)


def _respond(name: str, request: Request) -> Response:
    """Return a response with the dashboard's file `name`, or a 304 response if the browser has this content already."""
    asset = read_assets().get(name)
    if asset is None:
        raise UnknownNameError(f"the dashboard has no file {name[:80]!r}")
    headers = HEADERS | {"etag": asset.etag}
    if asset.matches(request.headers.get("if-none-match", "")):
        return Response(None, 304, headers)
    return Response(asset.content, 200, headers, media_type=asset.media_type)


@dataclass(frozen=True)
class _Asset:
    """A file of the dashboard.

    Attributes:
        etag: hash of the content, in quotes; a browser that has this content is not sent it again.
    """

    content: bytes
    media_type: str
    etag: str

    def matches(self, if_none_match: str) -> bool:
        """Return whether the value of a request header `if-none-match` names this content.

        Args:
            if_none_match: value of the header: a list of strong or weak tags, or a star.
        """
        tags = (tag.strip().removeprefix("W/") for tag in if_none_match.split(","))
        return any(tag in ("*", self.etag) for tag in tags)


@cache
def read_assets() -> dict[str, _Asset]:
    """Read all files of the dashboard from the package once, and return them by path.

    They take some hundred kilobytes and are cached.
    """
    assets = {}
    for path, file in _walk_files(files("lathe.service.dashboard") / "static"):
        content = file.read_bytes()
        media_type = MEDIA_TYPES[PurePath(path).suffix]
        assets[path] = _Asset(content, media_type, f'"{sha256(content).hexdigest()[:32]}"')
    return assets


def _walk_files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    """Yield `(path below the first folder, file)` for each file in a folder of the package and in its subfolders."""
    for entry in folder.iterdir():
        path = prefix + entry.name
        if entry.is_dir():
            yield from _walk_files(entry, f"{path}/")
        else:
            yield path, entry
