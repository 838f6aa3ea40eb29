"""Cancellation of encoding whose client has disconnected."""

import asyncio

from starlette.requests import Request

from lathe.service.encoders.engine.work import Work
from lathe.service.errors import ServiceError


async def wait_for_encoding(request: Request, work: Work | None) -> None:
    """Wait until a request's texts are encoded. If the client disconnects, cancel the encoding and raise.

    Args:
        request: request whose client is watched.
        work: the encoding; None returns at once.

    Raises:
        ServiceError: 499 if the client disconnected.
        Exception: the error with which the encoding failed.
    """
    if work is None:
        return
    # Cancelling the work's future frees its place in the queue, and ends the wait below.
    watch = asyncio.ensure_future(_cancel_on_disconnect(request, work))
    try:
        await asyncio.wrap_future(work.future)
    except asyncio.CancelledError:
        if watch.done():
            raise ServiceError("the client disconnected", status=499) from None
        raise  # the server itself cancelled the request
    finally:
        watch.cancel()


async def _cancel_on_disconnect(request: Request, work: Work) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    work.future.cancel()
