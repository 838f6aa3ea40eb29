"""A real server with a killed worker, too many requests or connections, and during shutdown."""

import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.helpers import eventually

pytestmark = pytest.mark.services

IDLE_CONNECTIONS = 1000


@pytest.fixture(scope="module")
def server(serving, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("home"), LATHE_MAX_QUEUED_TEXTS="64", LATHE_CACHE_BYTES="0") as server:
        yield server


def embed(server, text="a text", **body):
    return server.client.post("/embed", json={"inputs": text} | body)


def test_a_killed_encoder_worker_is_replaced_and_requests_are_answered_200_or_503(server):
    (worker,) = server.workers()
    statuses = []

    def send():
        with httpx2.Client(base_url=server.url, timeout=30) as client:
            for number in range(20):
                statuses.append(client.post("/embed", json={"inputs": f"text {number} " * 40}).status_code)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: statuses.count(200) > 5)
    os.kill(worker, signal.SIGKILL)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert set(statuses) == {200, 503}
    eventually(lambda: server.client.get("/health/ready").status_code == 200)
    assert embed(server).status_code == 200
    assert server.workers() != [worker]
    assert "lathe_worker_restarts_total" in server.client.get("/metrics").text


def test_requests_over_max_queued_texts_are_answered_429_with_retry_after(server):
    def send(number):
        begun = time.monotonic()
        answer = client.post("/embed", json={"inputs": [f"text {number} " * 40, f"{number}"]})
        return answer, time.monotonic() - begun

    with httpx2.Client(base_url=server.url, timeout=60) as client, ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(send, range(128)))
    refused = [(answer, seconds) for answer, seconds in answers if answer.status_code == 429]
    assert {answer.status_code for answer, _ in answers} == {200, 429}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer, _ in refused)
    assert embed(server).status_code == 200


def test_idle_incomplete_and_abandoned_connections_do_not_block_other_requests(server):
    host, port = server.url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(IDLE_CONNECTIONS)]
    try:
        for connection in idle[:50]:
            connection.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
        body = b'{"inputs": "never read"}'
        for connection in idle[50:60]:
            head = f"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            connection.sendall(head + body)
            connection.close()
        begun = time.monotonic()
        assert embed(server).status_code == 200
        assert time.monotonic() - begun < 10
        eventually(lambda: 'lathe_queue_texts{encoder="all-MiniLM-L6-v2"} 0.0' in server.client.get("/metrics").text)
    finally:
        for connection in idle:
            connection.close()


@pytest.mark.release
def test_requests_unfinished_at_the_shutdown_deadline_are_answered_503(serving, tmp_path):
    with serving(tmp_path / "home", LATHE_CACHE_BYTES="0", LATHE_SHUTDOWN_SECONDS="1") as server:
        (worker,) = server.workers()
        os.kill(worker, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(httpx2.post, f"{server.url}/embed", json={"inputs": "never"}, timeout=60)
            eventually(lambda: 'queue_texts{encoder="all-MiniLM-L6-v2"} 1.0' in server.client.get("/metrics").text)
            server.process.send_signal(signal.SIGTERM)
            answer = sent.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopped")
        assert server.process.wait(20) == 0


def test_a_server_that_lost_its_fork_server_and_its_terminal_finishes_accepted_requests(server):
    (worker,) = server.workers()
    (fork_server,) = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    os.kill(int(fork_server), signal.SIGKILL)
    for number in range(20):
        assert embed(server, f"text {number}").status_code == 200
        time.sleep(0.05)
    assert Path(f"/proc/{worker}").exists()
    with ThreadPoolExecutor(4) as pool:
        texts = [f"text {number} " * 40 for number in range(16)]
        sent = [pool.submit(httpx2.post, f"{server.url}/embed", json={"inputs": texts}, timeout=60) for _ in range(4)]
        queued = 'lathe_queue_texts{encoder="all-MiniLM-L6-v2"} 64.0'
        eventually(lambda: queued in server.client.get("/metrics").text)
        # As SIGTERM, which other tests send. Under nohup, SIGHUP is ignored, here as in the server.
        hangup = signal.SIGTERM if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else signal.SIGHUP
        server.process.send_signal(hangup)
        assert [answer.result().status_code for answer in sent] == [200] * 4
        assert server.process.wait(40) == 0
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{server.url}/health/live")
        eventually(lambda: not Path(f"/proc/{worker}").exists())
