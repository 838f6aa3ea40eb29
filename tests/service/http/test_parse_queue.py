import asyncio
import json
import mmap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.requests import Request

from lathe.service.http.body_memory import BodyMemoryMiddleware
from lathe.service.http.json_body import estimate_parsed_bytes, release_parse_memory, reserve_parse_memory
from lathe.service.http.parse_queue import ParseMemory, ParseQueue, ParseReservation
from lathe.service.http.request_body import read_body
from lathe.service.settings import read_settings

PAGE = mmap.PAGESIZE
LIMITS = read_settings(max_body_bytes=100_000)
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


def test_large_bodies_wait_for_each_other_and_small_ones_do_not():
    async def test():
        memory = ParseMemory(16 * 32_000_000)
        large = b"-9," * 10_000_000
        turns = [ParseReservation(memory) for _ in range(4)]
        tasks = [
            asyncio.ensure_future(turn.wait(estimate_parsed_bytes(body)))
            for turn, body in zip(turns, (large, large, b"-9," * 100_000, b"a text"), strict=True)
        ]
        await let_others_run()
        assert [task.done() for task in tasks] == [True, False, True, True]
        turns[0].release()
        turns[0].release()
        await let_others_run()
        assert all(task.done() for task in tasks)
        for turn in turns:
            turn.release()
        assert all(queue.reserved == 0 and not queue.waiting for _, queue in memory.queues)

    asyncio.run(test())


def test_estimate_parsed_bytes_is_40_per_number_or_more_and_4_per_byte_of_text():
    numbers = [-9, *range(1000, 2000)] * 100
    assert estimate_parsed_bytes(json.dumps(numbers).encode()) >= 40 * len(numbers)
    assert estimate_parsed_bytes(TEXT) == 4 * len(TEXT)


class Asking:
    """A request whose body came. The application does with it what the test says."""

    def __init__(self, middleware, body, then):
        self.parsing = self.sending = False
        self.then = then
        self.release = asyncio.Event()
        scope = {"type": "http", "headers": [], "asking": self}
        self.message = {"type": "http.request", "body": body, "more_body": False}
        self.task = asyncio.ensure_future(middleware(scope, self.receive, self.send))

    async def receive(self):
        return self.message

    async def send(self, message):
        self.sending = True
        await self.release.wait()  # the caller reads nothing


@pytest.fixture
def middleware():
    """The middleware around an application that reads a body and answers, fails, or hands what it read on."""

    async def app(scope, receive, send):
        asking = scope["asking"]
        request = Request(scope, receive)
        await reserve_parse_memory(request, await read_body(request, LIMITS))
        asking.parsing = True
        if asking.then == "fail":
            raise ValueError
        if asking.then == "hand on":
            release_parse_memory(request)
        if asking.then == "answer":
            await send({"type": "http.response.start"})
        await asking.release.wait()

    return BodyMemoryMiddleware(app, LIMITS.body_memory, LIMITS.parse_memory)


@pytest.mark.parametrize("then", ["fail", "hand on", "answer"])
def test_a_body_is_parsed_once_the_one_before_it_releases_its_memory(middleware, then):
    """The one before releases it by ending, failing, handing on what it read, or beginning to answer."""

    async def test():
        first, second = Asking(middleware, NUMBERS, "hold"), Asking(middleware, NUMBERS, then)
        third, text = Asking(middleware, NUMBERS, "hold"), Asking(middleware, TEXT, "hold")
        await let_others_run()
        assert first.parsing and not second.parsing and not third.parsing and text.parsing
        first.release.set()
        await let_others_run()
        assert second.parsing and third.parsing
        for asking in (second, third, text):
            asking.release.set()
        await asyncio.wait([asking.task for asking in (second, third, text)])
        assert isinstance(second.task.exception(), ValueError if then == "fail" else type(None))
        assert all(queue.reserved == 0 for _, queue in middleware.parse_memory.queues)

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
