"""The observer of live vectors: if it fails, no request fails, and work that it puts off delays none."""

import threading
from functools import partial

import numpy as np
import pytest

from lathe.service.chains.registry import STARTERS, Registry
from lathe.service.encoders.live_vectors import LiveVectors, ObservedVectors


@pytest.fixture
def loaded():
    """Load the starter chain `compact`."""
    return Registry(STARTERS).load("compact")


@pytest.fixture
def started():
    """Return live vectors whose thread runs, with a queue for two. Stop it afterwards."""
    live_vectors = LiveVectors(max_waiting=2)
    live_vectors.start()
    yield live_vectors
    live_vectors.stop()


def rows(count):
    """Return zero rows `(count, 384)`."""
    return np.zeros((count, 384), np.float32)


def test_the_observer_gets_all_rows_in_order_even_if_it_failed_before(started, loaded, caplog):
    found = []

    def fail_at_first(seen):
        found.append(len(seen.raw))
        if len(found) == 1:
            raise ValueError("secret")

    started.notify(ObservedVectors("minilm", loaded, rows(4)))  # nothing observes yet
    started.observer = fail_at_first
    for count in (1, 2, 3):
        started.notify(ObservedVectors("minilm", loaded, rows(count)))
    assert found == [1, 2, 3]
    assert "secret" not in caplog.text and len(caplog.records) == 1


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
