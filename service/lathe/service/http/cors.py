"""Cross-origin resource sharing: which origins' web pages may call the service from a browser."""

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

from lathe.service.http.openapi import VECTOR_HEADERS


def allow_origins(app: Starlette, origins: tuple[str, ...]) -> None:
    """Add CORS middleware that lets web pages of these origins call the app and read the response headers.

    Never with credentials: a page sets the key in a header itself; if browsers added cookies or passwords on their own,
    any page could act as its user.
    """
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["*"],
        allow_headers=["*"],  # clients of OpenAI's API send a dozen of their own
        expose_headers=[*VECTOR_HEADERS, "retry-after"],
    )
