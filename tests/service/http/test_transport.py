"""Large bodies over a real socket, received into one buffer.
Offers to change the protocol are ignored: each request is read whole, and nothing of its body as another.
Responses that are sent in one system call.
"""

import asyncio
import os

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from lathe.service.errors import ServiceError
from lathe.service.http.request_body import BodyMemoryMiddleware, read_body
from lathe.service.settings import Settings
from tests.service.http.connections import on_connections, status

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
@on_connections()
async def test_a_large_body_arrives_whole_and_the_connection_goes_on(served, app, bodies, piece):
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


@on_connections()
async def test_a_request_sent_ahead_is_read_after_the_body_before_it(served, app, bodies):
    other = BODY[:200_000]
    said = await served.say(HEAD % SIZE + b"\r\n" + BODY + HEAD % len(other) + b"\r\n" + other + GET)
    assert said.count(b"200 OK") == 3 and bodies == [BODY, other, b""]


@on_connections()
async def test_chunked_and_compressed_bodies_are_read_as_streams(served, app, bodies):
    chunked = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n%x\r\n" % SIZE
    assert b"200 OK" in await served.say(chunked + BODY + b"\r\n0\r\n\r\n")
    assert bodies == [BODY] and type(bodies[0]) is bytes


@pytest.mark.parametrize("how", ["close", "end", "abort"])
@on_connections()
async def test_a_client_that_leaves_in_the_middle_of_a_body_ends_its_request(served, app, bodies, how):
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


@on_connections()
async def test_a_body_that_comes_too_slowly_is_answered_408(served, app, bodies):
    reader, writer = await served.connect(HEAD % SIZE + b"\r\n" + BODY[:1_000_000])
    served.pass_seconds(60)
    await asyncio.sleep(0.02)
    assert bodies == []
    served.pass_seconds(121)
    writer.write(BODY[1_000_000:])
    assert status(await asyncio.wait_for(reader.read(), 10)) == 408
    assert [error.status for error in bodies] == [499]


@on_connections()
async def test_bodies_that_do_not_fit_beside_the_others_are_refused_and_passed_over(served, app, bodies):
    """What is declared takes no memory, only what was received."""
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


@on_connections()
async def test_a_body_over_the_limit_is_passed_over(served, app, bodies):
    large = bytes(4_000_001)
    said = await served.say(HEAD % len(large) + b"\r\n" + large + GET)
    assert b" 413 " in said and b"200 OK" in said


OFFERS = {
    "java": b"connection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\nupgrade: h2c\r\n",
    "websocket": b"upgrade: websocket\r\nconnection: keep-alive, Upgrade\r\nsec-websocket-key: x\r\n",
    "unknown": b"connection: upgrade\r\nupgrade: TLS/1.0\r\nupgrade: foo/9\r\n",
}
KEPT = {"java": 2, "websocket": 2, "unknown": 1}
"""Headers of each offer that reach the application: all but `upgrade`."""
HEAD_OF_UPGRADE_OFFERS = b"POST /x?y=z HTTP/1.1\r\nhost: localhost\r\n"
SMUGGLED = b"GET /other HTTP/1.1\r\nhost: localhost\r\n\r\n"
CLOSE = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n"


def frame(body, chunked):
    """Return the header that frames a body, and the framed body."""
    if chunked:
        half = len(body) // 2
        parts = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:], b""))
        return b"transfer-encoding: chunked\r\n", parts
    return b"content-length: %d\r\n" % len(body), body


@pytest.mark.parametrize(
    ("offer", "chunked"), [("java", False), ("java", True), ("websocket", False), ("unknown", True)]
)
@on_connections()
async def test_a_body_after_an_offer_is_read_whole_and_not_as_a_request(served, offer, chunked):
    framing, body = frame(SMUGGLED, chunked)
    head = HEAD_OF_UPGRADE_OFFERS + OFFERS[offer] + framing + b"\r\n"
    for segments in ([head + body + CLOSE], [head, body + CLOSE], [head + body[:5], body[5:], CLOSE]):
        served.requests = 0
        reader, writer = await served.connect()
        for segment in segments:
            writer.write(segment)
            await asyncio.sleep(0.02)
        said = await asyncio.wait_for(reader.read(), 10)
        assert said.count(b"HTTP/1.1 200 OK") == served.requests == 2
        assert b"%d headers, %d bytes" % (KEPT[offer] + 2, len(SMUGGLED)) in said


@on_connections()
async def test_pipelined_requests_with_offers_and_without_bodies_are_all_answered(served):
    asked = [b"GET / HTTP/1.1\r\nhost: localhost\r\n" + offer + b"\r\n" for offer in OFFERS.values()]
    assert (await served.say(b"".join(asked) + CLOSE)).count(b"200 OK") == served.requests == 4
