"""Offers to change the protocol are ignored: each request is read whole, and nothing of its body as another."""

import asyncio

import httptools
import pytest

from lathe.service.http.connection import HEADERS, LINE_BYTES, MAX_PIPELINED
from tests.service.http.connections import serving, status

OFFERS = {
    "java": b"connection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\nupgrade: h2c\r\n",
    "websocket": b"upgrade: websocket\r\nconnection: keep-alive, Upgrade\r\nsec-websocket-key: x\r\n",
    "unknown": b"connection: upgrade\r\nupgrade: TLS/1.0\r\nupgrade: foo/9\r\n",
}
KEPT = {"java": 2, "websocket": 2, "unknown": 1}
"""Headers of each offer that reach the application: all but `upgrade`."""
HEAD = b"POST /x?y=z HTTP/1.1\r\nhost: localhost\r\n"
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
def test_a_body_after_an_offer_is_read_whole_and_not_as_a_request(offer, chunked):
    framing, body = frame(SMUGGLED, chunked)
    head = HEAD + OFFERS[offer] + framing + b"\r\n"

    async def test(served):
        for segments in ([head + body + CLOSE], [head, body + CLOSE], [head + body[:5], body[5:], CLOSE]):
            served.requests = 0
            reader, writer = await served.connect()
            for segment in segments:
                writer.write(segment)
                await asyncio.sleep(0.02)
            said = await asyncio.wait_for(reader.read(), 10)
            assert said.count(b"HTTP/1.1 200 OK") == served.requests == 2
            assert b"%d headers, %d bytes" % (KEPT[offer] + 2, len(SMUGGLED)) in said

    serving(test)


def test_pipelined_requests_with_offers_and_without_bodies_are_all_answered():
    async def test(served):
        asked = [b"GET / HTTP/1.1\r\nhost: localhost\r\n" + offer + b"\r\n" for offer in OFFERS.values()]
        assert (await served.say(b"".join(asked) + CLOSE)).count(b"200 OK") == served.requests == 4

    serving(test)


def test_a_body_of_several_pieces_after_an_offer_and_one_over_http_1_0_are_read_whole():
    async def test(served):
        body = b"x" * 1_000_000
        said = await served.say(HEAD + OFFERS["java"] + b"content-length: 1000000\r\nconnection: close\r\n\r\n" + body)
        assert said.endswith(b"1000000 bytes")
        head = b"POST / HTTP/1.0\r\n" + OFFERS["java"]
        assert (await served.say(head + b"content-length: 3\r\n\r\nabc")).endswith(b"3 headers, 3 bytes")

    serving(test)


def test_requests_with_offers_keep_the_limits_of_others():
    async def test(served):
        many = b"".join(b"a%d: b\r\n" % number for number in range(HEADERS))
        assert status(await served.say(HEAD + OFFERS["java"] + many + b"\r\n")) == 431
        long = b"GET /" + b"x" * LINE_BYTES + b" HTTP/1.1\r\n"
        assert status(await served.say(long + OFFERS["java"] + b"\r\n")) == 414
        assert served.requests == 0
        served.release.clear()
        flood = b"GET / HTTP/1.1\r\n" + OFFERS["java"] + b"\r\n"
        reader, _ = await served.connect(flood * (MAX_PIPELINED + 2))
        assert await asyncio.wait_for(reader.read(), 10) == b""
        assert served.requests == 1
        reader, _ = await served.connect(HEAD + OFFERS["java"] + b"content-length: 3\r\n\r\nab")
        served.pass_seconds(121)
        assert status(await asyncio.wait_for(reader.read(), 10)) == 408

    serving(test)


def test_bytes_after_a_connect_request_are_the_next_request():
    async def test(served):
        said = await served.say(b"CONNECT /x HTTP/1.1\r\nhost: localhost\r\n\r\n" + CLOSE)
        assert said.count(b"HTTP/1.1 200") == 2

    serving(test)


def test_httptools_still_takes_the_body_for_another_protocol():
    """If this fails, `upgrade_offers.py` is not needed any more."""

    class Bodies:
        body = b""

        def on_body(self, body):
            self.body += body

    bodies = Bodies()
    with pytest.raises(httptools.HttpParserUpgrade):
        httptools.HttpRequestParser(bodies).feed_data(HEAD + OFFERS["java"] + b"content-length: 3\r\n\r\nabc")
    assert bodies.body == b""
