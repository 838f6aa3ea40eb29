import asyncio
import os
import signal

import numpy as np
import pytest
from starlette.requests import Request

from lathe.service.encoders.engine.admission_queue import AdmissionQueue
from lathe.service.encoders.engine.work import EncodedTexts, EncodeOptions, Work
from lathe.service.http.encoding import wait_for_encoding

DISCONNECT = {"type": "http.disconnect"}
ANSWER = EncodedTexts(np.ones((1, 2), np.float32), None, np.ones(1, np.int64), np.zeros(1, np.int64), 0.0, 0.0)


@pytest.fixture
def queue():
    return AdmissionQueue(10, 1000)


@pytest.fixture
def work(queue):
    """Queue work of one text."""
    waiting = Work(["a"], EncodeOptions(), None, False, 256)
    queue.put(waiting)
    return waiting


def wait_for(work, *steps):
    """Wait for work in a task, taking a step whenever it can go no further, and return the ended task."""

    async def run():
        messages = asyncio.Queue()
        task = asyncio.ensure_future(wait_for_encoding(Request({"type": "http"}, messages.get), work))
        for step in steps:
            for _ in range(5):  # until the task and what it started wait
                await asyncio.sleep(0)
            assert not task.done()
            step(messages, task)
        await asyncio.wait([task], timeout=10)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}  # nobody watches any more
        return task

    return asyncio.run(run())


def says(message):
    """Return a step that delivers a message of the client."""
    return lambda messages, _task: messages.put_nowait(message)


def test_work_finished_before_the_disconnect_is_no_error(work):
    def both(messages, _task):
        work.future.set_result(ANSWER)
        messages.put_nowait(DISCONNECT)

    assert wait_for(work, both).exception() is None


def test_embed_drops_queued_texts_of_a_disconnected_client_and_answers_499(lathe):
    """The app answers later requests as before."""
    engine = lathe.services.embedder.default
    pid = engine.supervisors[0].worker.process.pid
    body = b'{"inputs": ["a text that only the test of hanging up sends"]}'
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/embed", "raw_path": b"/embed", "root_path": "", "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    sent = []

    async def call():
        messages = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": body})

        async def send(message):
            sent.append(message)

        task = asyncio.ensure_future(lathe.client.app(scope, messages.get, send))
        while not engine.queue.texts:
            await asyncio.sleep(0.001)
        messages.put_nowait(DISCONNECT)
        await asyncio.wait_for(task, 10)

    os.kill(pid, signal.SIGSTOP)
    try:
        asyncio.run(asyncio.wait_for(call(), 30))
        assert engine.queue.texts == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    assert sent[0]["status"] == 499
    assert lathe.client.post("/embed", json={"inputs": "and it goes on"}).status_code == 200
