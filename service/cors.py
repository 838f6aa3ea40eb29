"""Which web pages of other origins may call the service from a browser."""

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

from service.answers import VECTOR_HEADERS


def allow_origins(app: Starlette, origins: tuple[str, ...]) -> None:
    """Let pages of these origins call the app, and read the headers of its answers.

    Never with credentials: keys are sent in a header that the page sets itself, and a browser that
    added cookies or passwords of its own accord would let any page act as its user.
    """
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["*"],
        allow_headers=["*"],  # clients of OpenAI's API send a dozen of their own
        expose_headers=[*VECTOR_HEADERS, "retry-after"],
    )
