"""Two servers behind the shipped nginx configuration with a real Redis: changes and failures under load."""

import contextlib
import signal
import threading
import time

import httpx2
import numpy as np
import pytest

from lathe.service.home import Home
from lathe.service.redis.replica import Replica
from lathe.transforms import Chain, parse_steps
from tests.helpers import eventually

pytestmark = pytest.mark.services

PAUSE_SECONDS = 0.02
"""Between a caller's requests: servers that start need the processor too."""
TEXT = "The ledger is closed at the end of every month."
ADMIN = {"authorization": "Bearer for-all-replicas"}


class Replicas:
    """Two servers, nginx before them, and a chain of two versions that answer TEXT differently."""

    def __init__(self, start_server, start_nginx, redis_url):
        self.start_server = start_server
        self.settings = {"LATHE_REDIS_URL": redis_url, "LATHE_ADMIN_KEYS": "for-all-replicas", "LATHE_THREADS": "1"}
        self.servers = [start_server(name, 0, self.settings) for name in ("one", "two")]
        self.ports = [httpx2.URL(server.url).port for server in self.servers]
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{start_nginx(self.ports, self.ports[0])}", timeout=60)
        self.expected = {}

    def restart(self, number):
        self.servers[number] = self.start_server(f"again-{number}", self.ports[number], self.settings)

    def ask(self, client=None, chain="mine"):
        answer = (client or self.client).post("/embed", json={"inputs": TEXT, "chain": chain})
        return answer.status_code, answer.headers.get("x-chain"), answer


class Callers:
    """Callers that ask through nginx all the time. They record what they were answered, or the error that they met."""

    def __init__(self, replicas, count=3):
        self.replicas, self.answers, self.stopping = replicas, [], threading.Event()
        self.threads = [threading.Thread(target=self.run) for _ in range(count)]

    def run(self):
        with httpx2.Client(base_url=self.replicas.client.base_url, timeout=60) as client:
            while not self.stopping.wait(PAUSE_SECONDS):
                try:
                    status, chain, answer = self.replicas.ask(client)
                except httpx2.HTTPError as error:
                    self.answers.append((repr(error), None, b""))
                else:
                    self.answers.append((status, chain, answer.content))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def check(self, expected):
        assert len(self.answers) > 50
        assert {status for status, _, _ in self.answers} == {200}
        for _, chain, content in self.answers:
            np.testing.assert_allclose(httpx2.Response(200, content=content).json()[0], expected[chain], atol=1e-3)


@pytest.fixture(scope="module")
def replicas(serving, start_redis, start_nginx, tmp_path_factory, publish):
    """Start two servers behind nginx, which share a Redis and serve two versions of a chain."""
    with contextlib.ExitStack() as stack:

        def start_server(name, port, settings):
            return stack.enter_context(serving(tmp_path_factory.mktemp(name), port, **settings))

        redis_server = start_redis()
        publish(redis_server.url)
        found = Replicas(start_server, start_nginx, redis_server.url)
        stack.enter_context(found.client)
        for version in (1, 2):
            _, chain, answer = found.ask(chain=f"mine@{version}")
            found.expected[chain] = answer.json()[0]
        assert not np.allclose(*found.expected.values(), atol=0.01)
        yield found


@pytest.fixture(scope="module")
def publish(tmp_path_factory, encoder):
    """Return a function that publishes two versions of a chain for the default encoder."""

    def both(url):
        replica = Replica(Home(tmp_path_factory.mktemp("publisher")), url)
        replica.bring_up_to_date()
        for seed in (0, 1):
            chain = Chain(parse_steps("r2,geopres:steps=2,dimensions=16"))
            chain.fit(np.random.default_rng(seed).normal(size=(100, 384)) + 0.1)
            chain.metadata = {"encoder": {"fingerprint": encoder.fingerprint}}
            replica.registry.publish(chain, "mine", None)

    return both


@pytest.mark.release
def test_promotions_and_rollbacks_under_load_fail_no_request_and_mix_no_versions(replicas):
    taken = []
    with Callers(replicas) as callers:
        for number in range(12):
            version = 2 - number % 2
            way, body = ("promote", {"version": 2}) if version == 2 else ("rollback", None)
            answer = replicas.client.post(f"/chains/mine/{way}", json=body, headers=ADMIN)
            assert answer.status_code == 200 and answer.json()["live"] == version
            begun = time.monotonic()
            for server in replicas.servers:
                eventually(lambda server=server, wanted=f"mine@{version}": replicas.ask(server.client)[1] == wanted)
            taken.append(time.monotonic() - begun)
    callers.check(replicas.expected)
    assert {chain for _, chain, _ in callers.answers} == set(replicas.expected)
    assert np.median(taken) < 1  # single ones may have waited for a processor that the callers kept busy


def test_a_replica_killed_under_load_fails_no_request(replicas):
    with Callers(replicas) as callers:
        eventually(lambda: len(callers.answers) > 30)
        replicas.servers[1].stop(signal.SIGKILL)
        count = len(callers.answers)
        eventually(lambda: len(callers.answers) > count + 30)
        replicas.restart(1)
        count = len(callers.answers)
        eventually(lambda: len(callers.answers) > count + 30)
    callers.check(replicas.expected)


@pytest.mark.release
def test_a_rolling_restart_under_load_fails_no_request(replicas):
    with Callers(replicas) as callers:
        for number in (0, 1):
            assert replicas.servers[number].stop() == 0
            replicas.restart(number)
            count = len(callers.answers)
            eventually(lambda count=count: len(callers.answers) > count + 20)
    callers.check(replicas.expected)
