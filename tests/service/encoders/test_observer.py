"""Observers of live vectors: one that fails fails no request, and work that they put off delays none."""

import threading
from functools import partial

import numpy as np
import pytest

from lathe.service.chains.registry import Registry
from lathe.service.chains.starters import STARTERS
from lathe.service.encoders.observer import ObservedVectors, Observers


@pytest.fixture
def loaded():
    """Load the starter chain `compact`."""
    return Registry(STARTERS).load("compact")


@pytest.fixture
def started():
    """Return a function that starts observers with these functions; stop them afterwards."""
    running = []

    def start(*functions, **limits):
        observers = Observers(**limits)
        for function in functions:
            observers.add(function)
        observers.start()
        running.append(observers)
        return observers

    yield start
    for observers in running:
        observers.stop()


def rows(count):
    """Return zero rows `(count, 384)`."""
    return np.zeros((count, 384), np.float32)


def test_every_observer_gets_all_rows_in_order_even_if_another_observer_fails(started, loaded, caplog):
    found = []

    def fails(_seen):
        raise ValueError("secret")

    observers = started(fails, found.append)
    for count in (1, 2, 3):
        observers.notify(ObservedVectors("minilm", loaded, rows(count)))
    observers.stop()
    assert [len(seen.raw) for seen in found] == [1, 2, 3]
    assert "secret" not in caplog.text and len(caplog.records) == 3


def test_work_over_the_queue_limit_is_refused_without_blocking(started):
    entered, go, done = threading.Event(), threading.Event(), []

    def slow():
        entered.set()
        go.wait(10)

    observers = started(max_waiting=2)
    assert observers.submit(slow) and entered.wait(10)
    assert [observers.submit(partial(done.append, number)) for number in range(4)] == [True, True, False, False]
    go.set()
    observers.stop()
    assert done == [0, 1]


def test_observers_are_added_and_removed_at_any_time(started, loaded):
    observers, found = started(), []
    assert not observers.active
    observers.add(found.append)
    assert observers.active
    observers.notify(ObservedVectors(None, loaded, rows(2)))
    observers.remove(found.append)
    observers.notify(ObservedVectors(None, loaded, rows(3)))
    assert [len(seen.raw) for seen in found] == [2] and not observers.active
