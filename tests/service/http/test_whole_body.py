"""Large bodies over a real socket, received into one buffer."""

import asyncio
import os

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from lathe.service.errors import ServiceError
from lathe.service.http.body_memory import BodyMemoryMiddleware
from lathe.service.http.request_body import read_body
from lathe.service.settings import Settings
from tests.service.http.connections import serving, status

SIZE = 3_000_001
BODY = os.urandom(SIZE)
LIMITS = Settings(max_body_bytes=4_000_000)
HEAD = b"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n"
GET = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n"


@pytest.fixture
def bodies():
    """Return the list of bodies that the application has read, or the errors that it met instead."""
    return []


@pytest.fixture
def app(bodies):
    """Return an application that reads bodies as routes do, with memory for 5 MB."""

    async def answer(scope, receive, send):
        try:
            body = await read_body(Request(scope, receive), LIMITS)
        except ServiceError as error:
            bodies.append(error)
            await PlainTextResponse("refused", error.status)(scope, receive, send)
            return
        bodies.append(body)
        await PlainTextResponse(f"{len(body)} bytes")(scope, receive, send)

    return BodyMemoryMiddleware(answer, 5_000_000, 5_000_000)


async def send_slowly(writer, data, piece):
    for start in range(0, len(data), piece):
        writer.write(data[start : start + piece])
        await writer.drain()
        await asyncio.sleep(0)


@pytest.mark.parametrize("piece", [10_007, SIZE])
def test_a_large_body_arrives_whole_and_the_connection_goes_on(app, bodies, piece):
    async def test(served):
        reader, writer = await served.connect()
        for last in (False, True):
            await send_slowly(writer, HEAD % SIZE + b"\r\n" + BODY, piece)
            if last:
                writer.write(GET)
            assert b"200 OK" in await reader.readuntil(b"\r\n")
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(13) == b"3000001 bytes"
        assert b"200 OK" in await asyncio.wait_for(reader.read(), 10)
        assert bodies == [BODY, BODY, b""] and type(bodies[0]) is memoryview

    serving(test, app)


def test_a_request_sent_ahead_is_read_after_the_body_before_it(app, bodies):
    async def test(served):
        other = BODY[:200_000]
        said = await served.say(HEAD % SIZE + b"\r\n" + BODY + HEAD % len(other) + b"\r\n" + other + GET)
        assert said.count(b"200 OK") == 3 and bodies == [BODY, other, b""]

    serving(test, app)


def test_chunked_and_compressed_bodies_are_read_as_streams(app, bodies):
    async def test(served):
        chunked = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n%x\r\n" % SIZE
        assert b"200 OK" in await served.say(chunked + BODY + b"\r\n0\r\n\r\n")
        assert bodies == [BODY] and type(bodies[0]) is bytes

    serving(test, app)


def test_a_client_that_waits_is_asked_for_its_body(app, bodies):
    async def test(served):
        reader, writer = await served.connect(HEAD % SIZE + b"expect: 100-continue\r\nconnection: close\r\n\r\n")
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert b"200 OK" in await asyncio.wait_for(reader.read(), 10) and bodies == [BODY]

    serving(test, app)


@pytest.mark.parametrize("how", ["close", "end", "abort"])
def test_a_client_that_leaves_in_the_middle_of_a_body_ends_its_request(app, bodies, how):
    async def test(served):
        _, writer = await served.connect(HEAD % SIZE + b"\r\n" + BODY[:1_000_000])
        if how == "close":
            writer.close()
        elif how == "end":
            writer.write_eof()
        else:
            writer.transport.abort()
        for _ in range(100):
            await asyncio.sleep(0.01)
            if bodies:
                break
        assert [error.status for error in bodies] == [499] and not served.state.connections

    serving(test, app)


def test_a_body_that_comes_too_slowly_is_answered_408(app, bodies):
    async def test(served):
        reader, writer = await served.connect(HEAD % SIZE + b"\r\n" + BODY[:1_000_000])
        served.pass_seconds(60)
        await asyncio.sleep(0.02)
        assert bodies == []
        served.pass_seconds(121)
        writer.write(BODY[1_000_000:])
        assert status(await asyncio.wait_for(reader.read(), 10)) == 408
        assert [error.status for error in bodies] == [499]

    serving(test, app)


def test_bodies_that_do_not_fit_beside_the_others_are_refused_and_passed_over(app, bodies):
    """What is declared takes no memory, only what was received."""

    async def test(served):
        first, waiting = await served.connect(HEAD % SIZE + b"\r\n" + BODY[:-1])
        await served.connect(HEAD % SIZE + b"\r\n" + BODY[:100_000])
        reader, writer = await served.connect()
        await send_slowly(writer, HEAD % SIZE + b"\r\n" + BODY, 50_000)
        writer.write(GET)
        said = await asyncio.wait_for(reader.read(), 10)
        assert b" 429 " in said and said.count(b"200 OK") == 1  # the request after it
        assert "does not fit beside the others" in bodies[0].message
        waiting.write(BODY[-1:])
        assert b"200 OK" in await first.readuntil(b"\r\n")
        assert bodies[-1] == BODY

    serving(test, app)


def test_a_body_over_the_limit_is_passed_over(app, bodies):
    async def test(served):
        large = bytes(4_000_001)
        said = await served.say(HEAD % len(large) + b"\r\n" + large + GET)
        assert b" 413 " in said and b"200 OK" in said

    serving(test, app)
