"""Client disconnects: encoding that no client waits for any more is cancelled."""

import asyncio

from starlette.requests import Request

from service.engine.work import Work
from service.errors import ClientGoneError


async def finished(request: Request, work: Work | None) -> None:
    """Wait until the work is done; cancel it if the client disconnects first. Return at once if `work` is None.

    Raises:
        ClientGoneError: if the client disconnected.
        Exception: the error with which the work failed.
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
    """Wait until the client disconnects, then cancel the work."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    work.future.cancel()
