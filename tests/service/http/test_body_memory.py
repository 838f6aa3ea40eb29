import asyncio

import pytest
from starlette.requests import Request

from lathe.service.errors import OverloadedError, TooLargeError
from lathe.service.http.body_memory import FREE_BYTES, BodyMemoryMiddleware
from lathe.service.http.request_body import read_body
from lathe.service.settings import read_settings

LIMITS = read_settings(max_body_bytes=200_000, body_memory_bytes=300_000)


class Sending:
    """A request whose body comes as the test sends it."""

    def __init__(self, middleware):
        self.pieces: asyncio.Queue = asyncio.Queue()
        self.task = asyncio.ensure_future(middleware({"type": "http", "headers": []}, self.pieces.get, None))

    async def send(self, size, more=True):
        self.pieces.put_nowait({"type": "http.request", "body": b"x" * size, "more_body": more})
        await asyncio.sleep(0.01)

    async def hang_up(self):
        self.pieces.put_nowait({"type": "http.disconnect"})
        await asyncio.wait([self.task])


@pytest.fixture
def middleware():
    """The middleware around an application that reads a body, and ends when the test lets it."""

    async def app(scope, receive, send):
        await read_body(Request(scope, receive), LIMITS)
        await wrapped.release.wait()

    wrapped = BodyMemoryMiddleware(app, LIMITS.body_memory, LIMITS.parse_memory)
    wrapped.release = asyncio.Event()
    return wrapped


def test_bodies_over_the_memory_limit_are_refused_except_small_ones(middleware):
    async def test():
        first, second, small = (Sending(middleware) for _ in range(3))
        await first.send(190_000)
        await second.send(100_000)
        assert middleware.body_memory.held == 290_000
        await second.send(20_000)
        with pytest.raises(OverloadedError, match="LATHE_BODY_MEMORY_BYTES"):
            await second.task
        assert middleware.body_memory.held == 190_000
        await small.send(FREE_BYTES, more=False)
        assert not small.task.done() and middleware.body_memory.held == 190_000
        await first.hang_up()
        assert middleware.body_memory.held == 0
        middleware.release.set()
        await small.task

    asyncio.run(test())


def test_a_body_is_counted_until_its_request_ends(middleware):
    async def test():
        sending = Sending(middleware)
        await sending.send(100_000, more=False)
        assert middleware.body_memory.held == 100_000
        middleware.release.set()
        await sending.task
        assert middleware.body_memory.held == 0

    asyncio.run(test())


def test_a_body_over_the_size_limit_is_read_without_being_counted_and_refused(middleware):
    async def test():
        sending = Sending(middleware)
        for _ in range(3):
            await sending.send(150_000)
        assert middleware.body_memory.held == 0
        await sending.send(0, more=False)
        with pytest.raises(TooLargeError):
            await sending.task

    asyncio.run(test())


def test_body_memory_defaults_to_eight_bodies_and_must_hold_one():
    assert read_settings().body_memory == 8 * read_settings().max_body_bytes
    assert read_settings(max_body_bytes=10**9).body_memory == 8 * 10**9
    with pytest.raises(ValueError, match="LATHE_BODY_MEMORY_BYTES"):
        read_settings(max_body_bytes=10**9, body_memory_bytes=10**8)
