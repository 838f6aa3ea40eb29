"""Callers who hang up: what they asked for and nobody took yet is not done any more."""

import asyncio

from starlette.requests import Request

from service.engine.work import Work
from service.errors import ClientGoneError


async def finished(request: Request, work: Work | None) -> None:
    """Wait for work; give it up when the caller does.

    Raises:
        ClientGoneError: if the caller hung up; nobody reads the answer then.
        Exception: that the work failed with.
    """
    if work is None:
        return
    watch = asyncio.ensure_future(give_up_with(request, work))
    try:
        await asyncio.wrap_future(work.future)
    except asyncio.CancelledError:
        if watch.done():
            raise ClientGoneError from None
        raise  # the server itself gave the request up
    finally:
        watch.cancel()


async def give_up_with(request: Request, work: Work) -> None:
    """Cancel work once its caller's connection is closed."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    work.future.cancel()
