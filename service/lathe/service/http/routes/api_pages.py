"""The pages that show the HTTP API: Swagger UI and ReDoc, from files that `fastapi_offline` ships."""

import re
from base64 import b64encode
from hashlib import sha256

from fastapi import APIRouter
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import HTMLResponse

from lathe.service.http.pages import build_page_headers

router = APIRouter(include_in_schema=False)

FILES = "/static-offline-docs"
INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
SOURCES = {
    "default": "'none'",
    "style": "'self' 'unsafe-inline'",  # both write styles into their pages
    "img": "'self' data:",
    "font": "'self' data:",
    "connect": "'self'",
    "worker": "'self' blob:",  # ReDoc searches in one
}


@router.get("/docs")
async def swagger(request: Request) -> HTMLResponse:
    """Serve the page of Swagger UI."""
    root = request.scope.get("root_path", "")
    return _protect(
        get_swagger_ui_html(
            openapi_url=f"{root}{request.app.openapi_url}",
            title=f"{request.app.title} - Swagger UI",
            swagger_js_url=f"{root}{FILES}/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{FILES}/swagger-ui.css",
            swagger_favicon_url=f"{root}{FILES}/favicon.png",
        )
    )


@router.get("/redoc")
async def redoc(request: Request) -> HTMLResponse:
    """Serve the page of ReDoc."""
    root = request.scope.get("root_path", "")
    return _protect(
        get_redoc_html(
            openapi_url=f"{root}{request.app.openapi_url}",
            title=f"{request.app.title} - ReDoc",
            redoc_js_url=f"{root}{FILES}/redoc.standalone.js",
            redoc_favicon_url=f"{root}{FILES}/favicon.png",
            with_google_fonts=False,
        )
    )


def _protect(page: HTMLResponse) -> HTMLResponse:
    """Add security headers to a page, by which it runs only its own scripts, and return the page.

    No other page may frame it.
    """
    hashes = [b64encode(sha256(script).digest()).decode() for script in INLINE_SCRIPT.findall(page.body)]
    scripts = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in hashes)])
    page.headers.update(build_page_headers(SOURCES | {"script": scripts}))
    return page
