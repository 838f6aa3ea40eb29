"""What passed through chains is seen beside the requests, and a watcher that fails or lags costs nobody anything."""

import threading

import numpy as np
import pytest
from prometheus_client import REGISTRY

from service.live.tap import Seen, Tap
from service.registry import Registry
from service.starters import STARTERS


@pytest.fixture
def loaded():
    return Registry(STARTERS).load("compact")


@pytest.fixture
def started():
    taps = []

    def start(*watchers, **limits):
        tap = Tap(**limits)
        for watcher in watchers:
            tap.watch(watcher)
        tap.start()
        taps.append(tap)
        return tap

    yield start
    for tap in taps:
        tap.stop()


def rows(count):
    return np.zeros((count, 384), np.float32)


def test_all_watchers_see_all_in_order_and_one_that_fails_does_not_blind_the_others(started, loaded, caplog):
    found = []

    def fails(_seen):
        raise ValueError("secret")

    tap = started(fails, found.append)
    for count in (1, 2, 3):
        tap.pass_by(Seen("minilm", loaded, rows(count)))
    tap.stop()
    assert [len(seen.raw) for seen in found] == [1, 2, 3]
    assert "secret" not in caplog.text and len(caplog.records) == 3


def test_what_comes_too_fast_is_dropped_and_counted_and_nobody_waits(started, loaded):
    before = REGISTRY.get_sample_value("lathe_live_dropped_total")
    entered, go, found = threading.Event(), threading.Event(), []

    def slow(seen):
        entered.set()
        go.wait(10)
        found.append(seen)

    tap = started(slow, waiting_most=2)
    tap.pass_by(Seen(None, loaded, rows(1)))
    assert entered.wait(10)
    for _ in range(5):
        tap.pass_by(Seen(None, loaded, rows(7)))
    go.set()
    tap.stop()
    assert len(found) == 3
    assert REGISTRY.get_sample_value("lathe_live_dropped_total") - before == 21


def test_watchers_come_and_go_while_it_runs(started, loaded):
    tap, found = started(), []
    assert not tap.open
    tap.watch(found.append)
    assert tap.open
    tap.pass_by(Seen(None, loaded, rows(2)))
    tap.stop()
    tap.unwatch(found.append)
    assert [len(seen.raw) for seen in found] == [2] and not tap.open
