"""Bodies that are compressed, and bodies that the client has not sent yet."""

import asyncio
import gzip
import json
import zlib

import numpy as np
import pytest
from starlette.requests import Request

from lathe.service.errors import OverloadedError, ServiceError, TooLargeError, convert_error
from lathe.service.http.body_memory import BodyMemory, BodyMemoryMiddleware, HeldBody
from lathe.service.http.middleware import RequestMiddleware, send_error
from lathe.service.http.request_body import INFLATED_BYTES, read_body
from lathe.service.settings import read_settings
from tests.service.http.connections import serving

LIMIT = 3 * INFLATED_BYTES
LIMITS = read_settings(max_body_bytes=LIMIT)
ABC = gzip.compress(b"abc", mtime=0)
CODINGS = dict.fromkeys(("gzip", "x-gzip", "GZip"), gzip.compress) | {"deflate": zlib.compress, "identity": bytes}


def read(body, pieces=1, memory=None, **headers):
    """Read a body that comes in pieces, with these headers, and return the bytes."""
    size = -(-len(body) // pieces)
    messages = [
        {"type": "http.request", "body": body[start : start + size], "more_body": start + size < len(body)}
        for start in range(0, max(1, len(body)), max(1, size))
    ]
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "headers": named, "held_body": HeldBody(memory or BodyMemory(10 * LIMIT))}

    async def receive():
        return messages.pop(0)

    return asyncio.run(read_body(Request(scope, receive), LIMITS))


@pytest.mark.parametrize(
    ("coding", "size"),
    [("gzip", 0), ("gzip", 1), ("gzip", INFLATED_BYTES - 1), ("deflate", INFLATED_BYTES),
     ("x-gzip", 2 * INFLATED_BYTES), ("GZip", LIMIT), ("identity", LIMIT)],
)  # fmt: skip
def test_a_compressed_body_is_read_as_what_was_compressed(coding, size):
    body = np.random.default_rng(size).integers(97, 105, size, np.uint8).tobytes()
    for pieces in (1, 7):
        assert read(CODINGS[coding](body), pieces, content_encoding=coding) == body


def test_a_body_that_is_too_large_when_decompressed_is_refused():
    for body in (b"x" * (LIMIT + 1), b"\0" * (50 * LIMIT)):
        memory = BodyMemory(10 * LIMIT)
        with pytest.raises(TooLargeError, match="decompressed"):
            read(gzip.compress(body), memory=memory, content_encoding="gzip")
        assert memory.held <= LIMIT
    with pytest.raises(OverloadedError):
        read(gzip.compress(b"\0" * LIMIT), memory=BodyMemory(LIMIT // 2), content_encoding="gzip")


@pytest.mark.parametrize(
    "body",
    # Without the time, which would give a test another name in each process.
    [b'{"inputs": "x"}', b"", ABC[:-1], ABC + b"x", gzip.compress(b"", mtime=0) * 2],
)
def test_a_body_that_is_not_one_compressed_stream_is_refused(body):
    with pytest.raises(ServiceError, match="cannot be decompressed") as refused:
        read(body, content_encoding="gzip")
    assert (refused.value.status, refused.value.code) == (400, "malformed_body")


def test_another_content_encoding_is_refused_by_name():
    for coding in ("br", "gzip, gzip", "x" * 1000):
        with pytest.raises(ServiceError, match="must be gzip or deflate, not '") as refused:
            read(b"x", content_encoding=coding)
        assert refused.value.status == 415


def test_compressed_json_and_npy_bodies_get_the_vectors_of_plain_ones(client, sentences, raw):
    body = gzip.compress(json.dumps({"inputs": sentences}).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert client.post("/embed", content=body, headers=headers).json() == raw
    reduced = client.post("/reduce", json={"vectors": raw, "chain": "compact"}).json()
    body = zlib.compress(json.dumps({"vectors": raw, "chain": "compact"}).encode())
    assert client.post("/reduce", content=body, headers=headers | {"content-encoding": "deflate"}).json() == reduced


async def app(scope, receive, send):
    """Read a body and answer with its size, or with what is wrong. A path of /refused is refused without reading."""
    try:
        if scope["path"] == "/refused":
            raise ServiceError("no", status=401)
        body = await read_body(Request(scope, receive), LIMITS)
    except ServiceError as error:
        await send_error(convert_error(error), send)
        return
    said = b"%d bytes" % len(body)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
    await send({"type": "http.response.body", "body": said})


def expect(path, size, more=b""):
    """Return the head of a request whose body waits for `100 Continue`."""
    return b"POST %s HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: %d\r\n%s\r\n" % (path, size, more)


@pytest.mark.parametrize(("path", "size", "status"), [(b"/", LIMIT + 1, 413), (b"/refused", 3, 401)])
def test_a_body_that_waits_for_100_continue_is_refused_unsent_and_the_connection_closed(path, size, status):
    async def test(served):
        said = await served.say(expect(path, size))
        assert said.startswith(b"HTTP/1.1 %d " % status) and b"connection: close" in said

    serving(test, RequestMiddleware(BodyMemoryMiddleware(app, 10 * LIMIT, 10 * LIMIT)))


def test_a_body_that_waits_for_100_continue_is_asked_for_and_the_connection_kept():
    async def test(served):
        reader, writer = await served.connect(expect(b"/", 3))
        for _ in range(2):
            assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc")
            said = await asyncio.wait_for(reader.readuntil(b"3 bytes"), 10)
            assert said.startswith(b"HTTP/1.1 200") and b"connection: close" not in said
            writer.write(expect(b"/", 3))

    serving(test, RequestMiddleware(BodyMemoryMiddleware(app, 10 * LIMIT, 10 * LIMIT)))


def test_a_body_that_is_too_large_and_sent_unasked_is_answered_413():
    async def test(served):
        said = await served.say(
            b"POST / HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (LIMIT + 1) + b"x" * (LIMIT + 1)
        )
        assert said.startswith(b"HTTP/1.1 413 ")

    serving(test, RequestMiddleware(BodyMemoryMiddleware(app, 10 * LIMIT, 10 * LIMIT)))
