"""Bodies that are compressed, and bodies that the client has not sent yet."""

import asyncio
import gzip
import json
import mmap
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from starlette.requests import Request

from lathe.service.errors import OverloadedError, ServiceError, TooLargeError, convert_error
from lathe.service.http.json_body import estimate_parsed_bytes, read_json
from lathe.service.http.middleware import RequestMiddleware, send_error
from lathe.service.http.request_body import (
    FREE_BYTES,
    INFLATED_BYTES,
    BodyMemory,
    BodyMemoryMiddleware,
    ParseQueue,
    RequestMemory,
    read_body,
)
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
    scope = {"type": "http", "headers": named, "memory": RequestMemory(memory or BodyMemory(10 * LIMIT, LIMIT))}

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
        memory = BodyMemory(10 * LIMIT, LIMIT)
        with pytest.raises(TooLargeError, match="decompressed"):
            read(gzip.compress(body), memory=memory, content_encoding="gzip")
        assert memory.held <= LIMIT
    with pytest.raises(OverloadedError):
        read(gzip.compress(b"\0" * LIMIT), memory=BodyMemory(LIMIT // 2, LIMIT), content_encoding="gzip")


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


LIMITS_OF_BODY_MEMORY = read_settings(max_body_bytes=200_000, body_memory_bytes=300_000)


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
        await read_body(Request(scope, receive), LIMITS_OF_BODY_MEMORY)
        await wrapped.release.wait()

    wrapped = BodyMemoryMiddleware(app, LIMITS_OF_BODY_MEMORY.body_memory, LIMITS_OF_BODY_MEMORY.parse_memory)
    wrapped.release = asyncio.Event()
    return wrapped


def test_bodies_over_the_memory_limit_are_refused_except_small_ones(middleware):
    async def test():
        first, second, small = (Sending(middleware) for _ in range(3))
        await first.send(190_000)
        await second.send(100_000)
        assert middleware.memory.held == 290_000
        await second.send(20_000)
        with pytest.raises(OverloadedError, match="LATHE_BODY_MEMORY_BYTES"):
            await second.task
        assert middleware.memory.held == 190_000
        await small.send(FREE_BYTES, more=False)
        assert not small.task.done() and middleware.memory.held == 190_000
        await first.hang_up()
        assert middleware.memory.held == 0
        middleware.release.set()
        await small.task

    asyncio.run(test())


def test_body_memory_defaults_to_eight_bodies_and_must_hold_one():
    assert read_settings().body_memory == 8 * read_settings().max_body_bytes
    assert read_settings(max_body_bytes=10**9).body_memory == 8 * 10**9
    with pytest.raises(ValueError, match="LATHE_BODY_MEMORY_BYTES"):
        read_settings(max_body_bytes=10**9, body_memory_bytes=10**8)


PAGE = mmap.PAGESIZE
LIMITS_OF_PARSE_QUEUE = read_settings(max_body_bytes=100_000)
NUMBERS = b"[" + b"-9," * 33_000 + b"0]"  # takes the whole memory, parsed
TEXT = b'"' + b"a" * 1000 + b'"'


async def let_others_run():
    """Yield to other coroutines until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


class Waiting:
    """What enters a queue, and is in once it was its turn."""

    def __init__(self, queue, size):
        self.task = asyncio.ensure_future(queue.enter(size))

    @property
    def entered(self):
        return self.task.done() and not self.task.cancelled()


def test_parse_queue_admits_in_order_of_arrival_up_to_its_limit():
    async def test():
        queue = ParseQueue(10)
        first, second, large, small = (Waiting(queue, size) for size in (6, 4, 9, 1))
        await let_others_run()
        assert first.entered and second.entered and not large.entered
        queue.leave(4)
        await let_others_run()
        assert not large.entered and not small.entered  # or small ones would keep a large one out for ever
        queue.leave(6)
        await let_others_run()
        assert large.entered and small.entered and queue.reserved == 10

    asyncio.run(test())


def test_a_request_over_the_parse_queues_limit_is_admitted_alone():
    async def test():
        queue = ParseQueue(10)
        large, small = Waiting(queue, 50), Waiting(queue, 1)
        await let_others_run()
        assert large.entered and not small.entered
        queue.leave(50)
        await let_others_run()
        assert small.entered

    asyncio.run(test())


@pytest.mark.parametrize("its_turn", [False, True])
def test_a_cancelled_waiter_reserves_no_memory(its_turn):
    async def test():
        queue = ParseQueue(10)
        first, second, third = (Waiting(queue, 10) for _ in range(3))
        await let_others_run()
        if its_turn:
            queue.leave(10)
        second.task.cancel()
        await let_others_run()
        assert first.entered and third.entered == its_turn
        queue.leave(10)
        await let_others_run()
        assert third.entered == (not its_turn) or queue.reserved == 0
        assert not queue.waiting

    asyncio.run(test())


def test_estimate_parsed_bytes_is_40_per_number_or_more_and_4_per_byte_of_text():
    numbers = [-9, *range(1000, 2000)] * 100
    assert estimate_parsed_bytes(json.dumps(numbers).encode()) >= 40 * len(numbers)
    assert estimate_parsed_bytes(TEXT) == 4 * len(TEXT)


class Asking:
    """A request whose body came. The application does with it what the test says."""

    def __init__(self, middleware_of_parse_queue, body, then):
        self.parsing = self.sending = False
        self.then = then
        self.release = asyncio.Event()
        scope = {"type": "http", "headers": [], "asking": self}
        self.message = {"type": "http.request", "body": body, "more_body": False}
        self.task = asyncio.ensure_future(middleware_of_parse_queue(scope, self.receive, self.send))

    async def receive(self):
        return self.message

    async def send(self, message):
        self.sending = True
        await self.release.wait()  # the caller reads nothing


@pytest.fixture
def middleware_of_parse_queue():
    """The middleware around an application that reads a body and answers, fails, or hands what it read on."""

    async def app(scope, receive, send):
        asking = scope["asking"]
        request = Request(scope, receive)
        await read_json(request, LIMITS_OF_PARSE_QUEUE, any_content_type=True)
        asking.parsing = True
        if asking.then == "fail":
            raise ValueError
        if asking.then == "hand on":
            scope["memory"].end_parsing()
        if asking.then == "answer":
            await send({"type": "http.response.start"})
        await asking.release.wait()

    return BodyMemoryMiddleware(app, LIMITS_OF_PARSE_QUEUE.body_memory, LIMITS_OF_PARSE_QUEUE.parse_memory)


@pytest.mark.parametrize("then", ["fail", "hand on", "answer"])
def test_a_body_is_parsed_once_the_one_before_it_releases_its_memory(middleware_of_parse_queue, then):
    """The one before releases it by ending, failing, handing on what it read, or beginning to answer."""

    async def test():
        first, second = (
            Asking(middleware_of_parse_queue, NUMBERS, "hold"),
            Asking(middleware_of_parse_queue, NUMBERS, then),
        )
        third, text = (
            Asking(middleware_of_parse_queue, NUMBERS, "hold"),
            Asking(middleware_of_parse_queue, TEXT, "hold"),
        )
        await let_others_run()
        assert first.parsing and not second.parsing and not third.parsing and text.parsing
        first.release.set()
        await let_others_run()
        assert second.parsing and third.parsing
        for asking in (second, third, text):
            asking.release.set()
        await asyncio.wait([asking.task for asking in (second, third, text)])
        assert isinstance(second.task.exception(), ValueError if then == "fail" else type(None))
        assert all(queue.reserved == 0 for _, queue in middleware_of_parse_queue.memory.queues)

    asyncio.run(test())


def resident_bytes():
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@pytest.mark.release
def test_parallel_large_bodies_take_less_than_350_mb_more_memory_than_one(start_app, tmp_path):
    row = b"[" + b"-99," * 16_383 + b"0]"
    body = b'{"chain": "compact", "vectors": [' + b",".join([row] * 120) + b"]}"  # 8 MB, parsed 80
    with start_app(indexes_only=True, home=tmp_path, max_body_bytes=8_000_000) as app, ThreadPoolExecutor(8) as callers:

        def reduce():
            return app.client.post("/reduce", content=body, headers={"content-type": "application/json"}).status_code

        assert reduce() == 422
        before = most = resident_bytes()
        answers = [callers.submit(reduce) for _ in range(8)]
        while not all(answer.done() for answer in answers):
            most = max(most, resident_bytes())
            time.sleep(0.002)
        assert [answer.result() for answer in answers] == [422] * 8
    assert most - before < 350_000_000
