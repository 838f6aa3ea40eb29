"""The proxy: a real nginx with the shipped configuration before small servers that record their requests."""

import http.client
import json
import re
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lathe.service.settings import Settings
from tests.helpers import eventually

pytestmark = pytest.mark.services

EVENTS = 4
READ_SECONDS = 5
CHANGING = ["/fit-transform", "/advise", "/chains/mine/promote", "/indexes/docs/upsert", "/indexes/docs/delete"]
REPLACING = [("PUT", "/encoders/mini/dimensions/8"), ("DELETE", "/chains/mine/1"), ("PATCH", "/chains/mine")]
REPLACING += [("PUT", "/indexes/docs"), ("DELETE", "/indexes/docs")]
READING = ["/", "/embed", "/reduce", "/v1/embeddings"]


class Instance(ThreadingHTTPServer):
    """Answers with its name.

    Attributes:
        mode: "answer"; a status to answer with; "die": read the request, then hang up; "sleep".
        seen: method, path and headers of each request.
        read: released for each event that a caller has read; without that the next is not sent.
    """

    def __init__(self, name):
        super().__init__(("127.0.0.1", 0), Handler)
        self.name, self.mode, self.seen = name, "answer", []
        self.read = threading.Semaphore(0)
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def handle_error(self, request, client_address):
        """Say nothing of callers that went."""

    def stop(self):
        """Be gone, as after a kill."""
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # an answer is one segment: in two, the second would wait for the first to be acknowledged

    def handle_one(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        if self.server.mode == "die":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif self.server.mode == "sleep":
            time.sleep(3)
        elif self.path.endswith("/events"):
            self.send_events()
        else:
            status = 200 if self.server.mode == "answer" else self.server.mode
            body = json.dumps({"from": self.server.name, "status": status}).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = handle_one

    def send_events(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for number in range(EVENTS):
            self.wfile.write(f"data: {number}\n\n".encode())
            self.wfile.flush()
            if not self.server.read.acquire(timeout=READ_SECONDS):
                break
        self.close_connection = True

    def log_message(self, *args):
        pass


@pytest.fixture
def instances():
    """Start two replicas and an index owner as small servers."""
    made = {name: Instance(name) for name in ("one", "two", "owner")}
    yield made
    for instance in made.values():
        instance.stop()


@pytest.fixture
def proxy(instances, start_nginx):
    """Start nginx before two replicas and the index owner, and return its port."""
    return start_nginx([instances["one"].port, instances["two"].port], instances["owner"].port)


@pytest.fixture
def proxy_of_four(instances, start_nginx):
    """Start nginx before four replicas and the index owner, and return its port."""
    more = {name: Instance(name) for name in ("three", "four")}
    instances.update(more)
    return start_nginx([instances[name].port for name in ("one", "two", *more)], instances["owner"].port)


@pytest.fixture
def dead_ports():
    """Return two ports that answer nothing, as the address of a container that is gone: their backlogs are full."""
    sockets = []
    for _ in range(2):
        listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        sockets += [listener, *waiting]
    yield [one.getsockname()[1] for one in sockets[::5]]
    for one in sockets:
        one.close()


def ask(port, method, path, body=None, headers=None):
    """Send a request and return the status, headers and JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, dict(answer.getheaders()), json.loads(content) if content else None
    finally:
        connection.close()


def post(port, path, **more):
    """Post an empty JSON object."""
    return ask(port, "POST", path, b"{}", {"content-type": "application/json"}, **more)


def test_index_routes_go_to_the_index_owner_and_others_to_the_replicas(proxy):
    for method, path in [
        ("GET", "/indexes"),
        ("PUT", "/indexes/docs"),
        ("POST", "/indexes/docs/search"),
        ("POST", "/indexes/docs/upsert"),
    ]:
        assert {ask(proxy, method, path)[2]["from"] for _ in range(4)} == {"owner"}, path
    for method, path in [("POST", "/embed"), ("GET", "/chains"), ("GET", "/jobs/1"), ("GET", "/indexesmore")]:
        assert {ask(proxy, method, path)[2]["from"] for _ in range(20)} == {"one", "two"}, path


@pytest.mark.parametrize("path", READING)
def test_a_reading_request_is_retried_on_another_replica_if_one_dies(proxy, instances, path):
    instances["one"].mode = "die"

    assert {post(proxy, path)[0] for _ in range(10)} == {200}
    assert instances["one"].seen


@pytest.mark.parametrize("path", READING)
def test_a_reading_request_is_sent_to_at_most_two_replicas(proxy_of_four, instances, path):
    for instance in instances.values():
        instance.mode = "die"

    assert post(proxy_of_four, path)[0] == 502
    assert sum(len(instance.seen) for instance in instances.values()) == 2


@pytest.mark.parametrize(("method", "path"), [*[("POST", path) for path in CHANGING], *REPLACING])
def test_a_writing_request_is_sent_once(proxy, instances, method, path):
    for instance in instances.values():
        instance.mode = "die"

    status, headers, body = ask(proxy, method, path, b"{}", {"content-type": "application/json"})

    assert (status, body["error"]["code"]) == (502, "bad_gateway")
    assert sum(len(instance.seen) for instance in instances.values()) == 1
    assert headers["retry-after"] == "1"


def test_a_stopped_replica_fails_no_request(proxy, instances):
    instances["one"].stop()

    assert {post(proxy, path)[0] for path in [*READING, "/fit-transform"] for _ in range(5)} == {200}
    for method, path in REPLACING[:3]:
        assert {ask(proxy, method, path, b"{}")[0] for _ in range(6)} == {200}, path


@pytest.mark.parametrize("path", ["/embed", "/fit-transform"])
def test_requests_that_reach_no_replica_in_two_tries_are_sent_to_a_third(dead_ports, instances, start_nginx, path):
    ports = [*dead_ports, instances["one"].port]
    proxy = start_nginx(ports, instances["owner"].port, {"proxy_connect_timeout 2s;": "proxy_connect_timeout 100ms;"})

    assert {post(proxy, path)[0] for _ in range(12)} == {200}
    assert len(instances["one"].seen) == 12


@pytest.mark.parametrize(("patience", "times"), [("20s", 2), ("300ms", 1)])
def test_a_reading_request_that_timed_out_is_not_sent_again(instances, start_nginx, patience, times):
    replaced = {"proxy_read_timeout 300s;": "proxy_read_timeout 500ms;"}
    replaced["proxy_next_upstream_timeout 20s;"] = f"proxy_next_upstream_timeout {patience};"
    port = start_nginx([instances["one"].port, instances["two"].port], instances["owner"].port, replaced)
    instances["one"].mode = instances["two"].mode = "sleep"

    status, _, body = post(port, "/embed")

    assert (status, body["error"]["code"]) == (504, "timeout")
    assert len(instances["one"].seen + instances["two"].seen) == times


def test_a_replica_answering_503_is_skipped(proxy, instances):
    instances["one"].mode = 503

    assert {post(proxy, "/embed")[2]["from"] for _ in range(10)} == {"two"}
    assert {ask(proxy, "GET", "/health/ready")[0] for _ in range(10)} == {200}


def test_administration_answered_503_does_not_disable_the_replicas(proxy, instances):
    instances["one"].mode = instances["two"].mode = 503
    refused = [post(proxy, "/fit-transform") for _ in range(20)]
    listed = [ask(proxy, "GET", "/jobs") for _ in range(20)]
    instances["one"].mode = instances["two"].mode = "answer"

    assert {status for status, _, _ in refused + listed} == {503}
    assert {body["from"] for _, _, body in refused} == {"one", "two"}  # the service's own words, not the proxy's
    assert {post(proxy, "/embed")[0] for _ in range(10)} == {200}


def test_a_recovered_replica_gets_requests_again_within_5_seconds(proxy, instances):
    instances["one"].mode = "die"
    for _ in range(20):
        post(proxy, "/embed")
    instances["one"].mode = "answer"
    eventually(lambda: post(proxy, "/embed")[2]["from"] == "one", 5)


def test_without_any_replica_the_answer_is_502_in_the_services_error_shape(proxy, instances):
    for instance in instances.values():
        instance.stop()

    for path in ("/embed", "/fit-transform", "/indexes/docs/search"):
        status, headers, body = post(proxy, path)
        assert status == 502
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert (body["error"]["type"], body["error_type"]) == ("server_error", "Backend")
        assert headers["Content-Type"] == "application/json"
        assert headers["x-request-id"]


def test_a_too_large_body_is_answered_413_and_32_mb_pass(proxy, instances):
    status, _, body = ask(proxy, "POST", "/reduce", b"x" * 36_000_000)
    assert (status, body["error"]["code"], body["error_type"]) == (413, "too_large", "Validation")
    assert not instances["one"].seen + instances["two"].seen

    assert ask(proxy, "POST", "/reduce", b"x" * 32_000_000)[0] == 200


@pytest.mark.parametrize("mode", ["answer", "die"])
def test_a_backup_of_any_size_is_passed_to_the_owner_of_the_indexes_once(proxy, instances, mode):
    instances["owner"].mode = mode

    status, _, _ = ask(proxy, "PUT", "/indexes/docs/backup", b"x" * 40_000_000)

    assert status == {"answer": 200, "die": 502}[mode]
    assert [(method, path) for method, path, _ in instances["owner"].seen] == [("PUT", "/indexes/docs/backup")]
    assert not instances["one"].seen + instances["two"].seen


def test_server_sent_events_are_not_buffered(proxy, instances):
    connection = http.client.HTTPConnection("127.0.0.1", proxy, timeout=20)
    connection.request("GET", "/jobs/1/events")
    answer = connection.getresponse()
    came = 0
    while line := answer.readline():
        if line.startswith(b"data"):
            came += 1
            for instance in instances.values():
                instance.read.release()
    connection.close()

    assert came == EVENTS  # each but the first was sent only after the one before had come


@pytest.mark.parametrize("path", ["/metrics", "//metrics", "/%6detrics", "/embed/../metrics"])
def test_metrics_are_not_reachable_through_the_proxy(proxy, instances, path):
    status, _, body = ask(proxy, "GET", path)

    assert (status, body["error"]["code"]) == (404, "no_route")
    assert not instances["one"].seen + instances["two"].seen


def test_replicas_get_forwarded_headers_and_a_request_id(proxy, instances):
    ask(proxy, "GET", "/indexes", headers={"x-request-id": "abc", "host": "lathe.example.org"})
    ask(proxy, "GET", "/indexes", headers={"x-forwarded-for": "192.0.2.1", "x-forwarded-proto": "https"})
    named, unnamed = ({name.lower(): value for name, value in seen[2].items()} for seen in instances["owner"].seen)

    assert named["x-request-id"] == "abc"
    assert named["host"] == named["x-forwarded-host"] == "lathe.example.org"
    assert (named["x-forwarded-for"], named["x-forwarded-proto"]) == ("127.0.0.1", "http")
    assert len(unnamed["x-request-id"]) == 32
    assert (unnamed["x-forwarded-for"], unnamed["x-forwarded-proto"]) == ("192.0.2.1, 127.0.0.1", "https")


def test_nginx_closes_idle_connections_before_the_service_does(root):
    seconds = re.findall(r"keepalive_timeout (\d+)s;", (root / "docker/nginx/upstreams.conf").read_text())
    assert len(seconds) == 2
    assert all(int(number) < Settings.model_fields["keep_alive_seconds"].default for number in seconds)


def test_health_proxy_is_answered_without_a_replica(proxy, instances):
    for instance in instances.values():
        instance.mode = "die"

    assert ask(proxy, "GET", "/health/proxy")[0] == 200


def test_requests_are_spread_over_both_replicas(proxy, instances):
    threads = [threading.Thread(target=lambda: [post(proxy, "/embed") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shares = Counter({name: len(instances[name].seen) for name in ("one", "two")})

    assert shares.total() == 200
    assert min(shares.values()) > 50
