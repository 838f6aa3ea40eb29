"""Observers of live vectors: they run in a thread of their own, and one that fails or lags delays no request."""

import threading

import numpy as np
import pytest
from prometheus_client import REGISTRY

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


def test_vectors_over_the_queue_limit_are_dropped_and_counted_without_blocking(started, loaded):
    before = REGISTRY.get_sample_value("lathe_live_dropped_total")
    entered, go, found = threading.Event(), threading.Event(), []

    def slow(seen):
        entered.set()
        go.wait(10)
        found.append(seen)

    observers = started(slow, max_waiting=2)
    observers.notify(ObservedVectors(None, loaded, rows(1)))
    assert entered.wait(10)
    for _ in range(5):
        observers.notify(ObservedVectors(None, loaded, rows(7)))
    go.set()
    observers.stop()
    assert len(found) == 3
    assert REGISTRY.get_sample_value("lathe_live_dropped_total") - before == 21


def test_observers_are_added_and_removed_while_the_thread_runs(started, loaded):
    observers, found = started(), []
    assert not observers.active
    observers.add(found.append)
    assert observers.active
    observers.notify(ObservedVectors(None, loaded, rows(2)))
    observers.stop()
    observers.remove(found.append)
    assert [len(seen.raw) for seen in found] == [2] and not observers.active
