"""Work that the observer of live vectors puts off, which delays no request."""

import threading
from functools import partial

import pytest

from lathe.service.encoders.live_vectors import LiveVectors


@pytest.fixture
def started():
    """Return live vectors whose thread runs, with a queue for two. Stop it afterwards."""
    live_vectors = LiveVectors(max_waiting=2)
    live_vectors.start()
    yield live_vectors
    live_vectors.stop()


def test_work_over_the_queue_limit_is_refused_without_blocking(started):
    entered, go, done = threading.Event(), threading.Event(), []

    def slow():
        entered.set()
        go.wait(10)

    assert started.submit(slow) and entered.wait(10)
    assert [started.submit(partial(done.append, number)) for number in range(4)] == [True, True, False, False]
    go.set()
    started.stop()
    assert done == [0, 1]
