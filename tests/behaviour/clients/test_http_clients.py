"""HTTP clients of several languages against a real server: straight, behind the shipped nginx, and below a path.

Each program of `programs/` goes through its steps, pauses, and sends once more; all run at the same time.
"""

import gzip
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

pytestmark = pytest.mark.services

KEY = "use-key"
ROOT_PATH = "/team/lathe"
MAX_BYTES = 2_000_000
PAUSE = 8  # Node closes idle connections after 4 s
KEEP_ALIVE = 20
TEXTS = ["The ledger is closed at the end of every month.", "Größer als 10 €, 日本語 😀"]
BODY = json.dumps({"inputs": TEXTS})
CLIENTS = Path(__file__).parent / "programs"
NODE_MODULES = Path(sys.prefix) / "node" / "node_modules"
PROGRAMS = {
    "fetch of Node": ["node", CLIENTS / "fetch.mjs"],
    "openai for Node": ["node", CLIENTS / "openai.cjs"],
    "HttpClient of Java": ["java", CLIENTS / "HttpClients.java"],
    "clients of Python": [sys.executable, CLIENTS / "python_clients.py"],
}
STEPS = {"fetch of Node": 27, "openai for Node": 23, "HttpClient of Java": 28, "clients of Python": 56}
"""Number of requests of each program."""

ADDRESSES = ["straight, over IPv6", "behind the shipped nginx", "below a path that is stripped", "below a path"]
SERVERS = """
    server {{
        listen 127.0.0.1:{port};
        location {root}/ {{
            proxy_pass http://127.0.0.1:{server}/;
        }}
    }}
    server {{
        listen 127.0.0.2:{port};
        proxy_http_version 1.1;
        proxy_set_header Host $http_host;
        proxy_request_buffering off;
        # As pages on WebSockets advise: every offer reaches the server.
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $http_connection;
        location {root}/ {{
            proxy_pass http://127.0.0.1:{server};
        }}
    }}
"""


@pytest.fixture(scope="module")
def server(serving, tmp_path_factory):
    variables = {"LATHE_HOST": "::", "LATHE_API_KEYS": KEY, "LATHE_ROOT_PATH": ROOT_PATH, "HF_HUB_OFFLINE": "1"}
    variables |= {"LATHE_KEEP_ALIVE_SECONDS": str(KEEP_ALIVE), "LATHE_MAX_BODY_BYTES": str(MAX_BYTES)}
    with serving(tmp_path_factory.mktemp("http_clients") / "home", **variables) as server:
        yield server


@pytest.fixture(scope="module")
def urls(server, start_nginx, run_nginx):
    """Return the URL of the server at each of `ADDRESSES`."""
    port = httpx.URL(server.url).port

    def write(folder, proxy_port):
        servers = SERVERS.format(port=proxy_port, server=port, root=ROOT_PATH)
        paths = " ".join(f"{name}_temp_path {folder}/{name};" for name in ("proxy", "fastcgi", "uwsgi", "scgi"))
        paths += f" client_body_temp_path {folder}/bodies; client_max_body_size 0; access_log off;"
        main = f"pid {folder}/nginx.pid;\nevents {{}}\nhttp {{\n    {paths}\n{servers}}}\n"
        (folder / "nginx.conf").write_text(main)

    below = run_nginx(write)
    hosts = [f"[::1]:{port}", f"127.0.0.1:{start_nginx([port], port)}"]
    hosts += [f"127.0.0.1:{below}{ROOT_PATH}", f"127.0.0.2:{below}{ROOT_PATH}"]
    return {address: f"http://{host}" for address, host in zip(ADDRESSES, hosts, strict=True)}


@pytest.fixture(scope="module")
def idle_seconds(server):
    """Open a connection that is idle after one request and return a future of the seconds until it is closed."""

    def wait():
        with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port), KEEP_ALIVE + 30) as connection:
            connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            begun = time.monotonic()
            assert connection.recv(1) == b""
            return time.monotonic() - begun

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(wait)


@pytest.fixture(scope="module")
def running(urls, idle_seconds, tmp_path_factory):
    """Start each program against each address, all at once, and return them with the files of their lines."""
    assert (NODE_MODULES / "openai").is_dir(), "openai for Node is missing: `make test-services` installs it"
    folder = tmp_path_factory.mktemp("printed")
    started = {}
    for name, command in PROGRAMS.items():
        for address, url in urls.items():
            printed = (folder / f"{name} {address}").open("w+")
            words = [*command, url, KEY, BODY, str(PAUSE)]
            environment = os.environ | {"NODE_PATH": str(NODE_MODULES)}
            process = subprocess.Popen(words, env=environment, stdout=printed, stderr=subprocess.STDOUT)
            started[name, address] = process, printed
    yield started
    for process, printed in started.values():
        process.kill()
        process.wait()
        printed.close()


@pytest.fixture(scope="module")
def expected(urls):
    answer = httpx.post(
        f"{urls[ADDRESSES[0]]}/embed", json={"inputs": TEXTS}, headers={"authorization": f"Bearer {KEY}"}
    )
    return np.array(answer.json())


def curl(url, *options, path="/embed"):
    """Run curl and return its exit status, the status of the last answer, and the body."""
    words = ["curl", "--silent", "--max-time", "60", "--write-out", "\n%{http_code} %{size_upload}"]
    headers = ["--header", "content-type: application/json", "--header", f"authorization: Bearer {KEY}"]
    done = subprocess.run([*words, *headers, *options, url + path], capture_output=True, text=True)
    body, _, numbers = done.stdout.rpartition("\n")
    status, uploaded = map(int, numbers.split())
    return done.returncode, status, uploaded, body


@pytest.mark.parametrize(
    ("http", "address"),
    [*(("--http1.1", address) for address in ADDRESSES), ("--http1.0", ADDRESSES[0]), ("--http2", ADDRESSES[0])],
)
def test_curl_gets_the_vectors(running, urls, expected, address, http, tmp_path):
    (tmp_path / "body.gz").write_bytes(gzip.compress(BODY.encode()))
    large = json.dumps({"inputs": [*TEXTS, "x" * (MAX_BYTES - 1000)]})
    (tmp_path / "large.json").write_text(large)  # curl asks before it sends so much
    url, chunked = urls[address], [] if http == "--http1.0" else ["--header", "transfer-encoding: chunked"]
    for options in (
        ["--data", BODY],
        ["--data", BODY, *chunked],
        ["--data-binary", f"@{tmp_path}/body.gz", "--header", "content-encoding: gzip"],
        ["--data-binary", f"@{tmp_path}/large.json"],
        ["--data-binary", f"@{tmp_path}/large.json", *chunked],
    ):
        ended, status, _, body = curl(url, http, *options)
        assert (ended, status) == (0, 200), (options, body)
        np.testing.assert_allclose(json.loads(body)[: len(TEXTS)], expected, atol=1e-5)


def test_curl_sends_nothing_of_a_body_that_is_too_large(urls, tmp_path):
    (tmp_path / "large.json").write_text(json.dumps({"inputs": ["x" * MAX_BYTES]}))
    for url in (urls[ADDRESSES[0]], urls[ADDRESSES[3]]):
        ended, status, uploaded, body = curl(url, "--data-binary", f"@{tmp_path}/large.json")
        assert (ended, status, json.loads(body)["error"]["code"]) == (0, 413, "too_large")
        if url == urls[ADDRESSES[0]]:
            assert uploaded == 0


def test_a_client_that_speaks_only_http_2_fails_at_once(urls):
    begun = time.monotonic()
    ended, status, _, _ = curl(urls[ADDRESSES[0]], "--http2-prior-knowledge", "--data", BODY)
    assert ended != 0 and status == 0
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("address", ADDRESSES[2:])
def test_redirects_and_the_pages_of_the_api_keep_the_path(urls, address):
    url = urls[address]
    redirect = httpx.get(f"{url}/health/")
    assert (redirect.status_code, redirect.headers["location"]) == (307, f"{ROOT_PATH}/health")
    assert httpx.get(f"{url}/openapi.json").json()["servers"] == [{"url": ROOT_PATH}]
    for page in ("/docs", "/redoc"):
        assert f"{ROOT_PATH}/openapi.json" in httpx.get(url + page).text
    assert httpx.get(f"{url}/static-offline-docs/swagger-ui-bundle.js").status_code == 200
    page = httpx.get(f"{url}/")
    assert 'src="dashboard/main.js"' in page.text
    assert httpx.get(httpx.URL(f"{url}/").join("dashboard/main.js")).status_code == 200


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_step_of_every_client_gets_the_vectors(running, expected, name, address):
    process, printed = running[name, address]
    ended = process.wait(120)
    printed.seek(0)
    lines = printed.read().splitlines()
    assert ended == 0, "\n".join(lines[-20:])
    steps = [json.loads(line) for line in lines]
    assert {step["step"]: step["body"] for step in steps if step["status"] != 200} == {}
    for step in steps:
        np.testing.assert_allclose(json.loads(step["body"]), expected, atol=1e-5, err_msg=step["step"])
    assert len(steps) == STEPS[name]


def test_an_idle_connection_is_closed_after_the_time_of_the_setting(idle_seconds):
    assert KEEP_ALIVE - 1 < idle_seconds.result() < KEEP_ALIVE + 10
