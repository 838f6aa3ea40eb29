"""A real server process with the real model over HTTP: killed, restarted, stopped, and without network or disk."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import openai
import pytest

from tests.helpers import LATHE


@pytest.fixture(scope="module")
def texts(paragraphs):
    """Return thousands of texts, so that a fit on them takes a while."""
    return [f"{number}: {text}" for number in range(15) for text in paragraphs]


def running_pid(home, job_id):
    """Return the process id of a running job, from its record."""
    return json.loads((home / "jobs" / job_id / "job.json").read_text())["pid"]


@pytest.fixture(scope="module")
def first(serving, home):
    """A server that its tests share, the last of which kills it."""
    with serving(home) as server:
        yield server


@pytest.fixture(scope="module")
def server(serving, home):
    """Start a second server on the same state folder. The last test that uses it ends it."""
    with serving(home) as server:
        yield server


def test_a_server_embeds_fits_and_reduces_over_http(first, run, paragraphs, tmp_path):
    """A chain that the command line fits on the same state folder is served at once."""
    assert first.client.get("/health/ready").status_code == 200
    greeting = "".join(first.greeting)
    assert greeting.count("curl") == 3 and first.admin["authorization"][7:] not in greeting

    raw = first.client.post("/embed", json={"inputs": paragraphs[:20]}).json()
    job = first.wait(first.submit(paragraphs[:120]), "succeeded", "failed")
    assert job["state"] == "succeeded", job["error"]
    mine = first.client.post("/embed", json={"inputs": paragraphs[:20], "chain": "mine"})
    assert mine.headers["x-chain"] == "mine@1"
    reduced = first.client.post("/reduce", json={"vectors": raw, "chain": "mine"}).json()["vectors"]
    np.testing.assert_allclose(reduced, mine.json(), atol=1e-5)

    # A fit on the command line is served by the running server at once.
    (tmp_path / "some.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in paragraphs[:60]))
    assert run("fit", "--name", "side", "--steps", "r2", "--source", tmp_path / "some.jsonl")[0] == 0
    side = first.client.post("/embed", json={"inputs": "text", "chain": "side"})
    assert side.headers["x-chain"] == "side@1"


def test_a_killed_fit_fails_and_leaves_no_chain(first, texts):
    """A later fit of the same name succeeds."""
    job_id = first.submit(texts[:3000], name="half")
    first.wait(job_id, "running")
    while first.client.get(f"/jobs/{job_id}").json()["progress"] == 0:
        time.sleep(0.05)
    os.kill(running_pid(first.home, job_id), signal.SIGKILL)
    job = first.wait(job_id, "failed", "succeeded", seconds=5)
    assert job["state"] == "failed" and "killed" in job["error"] and job["finished_at"]
    assert first.client.get("/chains/half").status_code == 404
    assert "half" not in {chain["name"] for chain in first.client.get("/chains").json()}
    assert first.client.post("/embed", json={"inputs": "x", "dimensions": 48}).headers["x-chain"] == "compact@1"

    cancelled = first.submit(texts[:3000], name="half")
    first.wait(cancelled, "running")
    assert first.client.delete(f"/jobs/{cancelled}", headers=first.admin).json()["state"] == "cancelled"
    job = first.wait(first.submit(texts[:100], name="half"), "succeeded", "failed")
    assert job["result"]["chain"] == "half@1"


def test_a_server_restarted_after_a_kill_serves_the_same_vectors_and_finishes_queued_jobs(first, texts, request):
    body = {"inputs": texts[:20], "chain": "mine"}
    before, done = first.client.post("/embed", json=body), first.client.get("/jobs").json()
    running, queued = first.submit(texts[:200], name="running"), first.submit(texts[:60], name="later")
    first.wait(running, "running")
    (worker,) = first.workers()
    first.stop(signal.SIGKILL)
    server = request.getfixturevalue("server")
    assert server.wait(running, "succeeded", "failed")["state"] == "succeeded"
    assert server.wait(queued, "succeeded", "failed")["result"]["chain"] == "later@1"
    after = server.client.post("/embed", json=body)
    assert after.headers["x-space-id"] == before.headers["x-space-id"] and after.headers["x-chain"] == "mine@1"
    np.testing.assert_allclose(after.json(), before.json(), atol=1e-6)
    assert not Path(f"/proc/{worker}").exists()  # it ended with the server that was killed
    assert [job for job in server.client.get("/jobs").json() if job["id"] not in (running, queued)] == done


def test_damaged_job_records_are_listed_as_failed_and_do_not_stop_the_server(start_app, tmp_path):
    home = tmp_path / "home"
    whole = {"kind": "fit", "state": "succeeded", "created_at": "", "finished_at": ""}
    damaged = [
        "{",
        "[" * 200_000,
        json.dumps(whole | {"id": "another"}),
        json.dumps(whole | {"id": "2" * 22, "progress": 10**4000}),
        json.dumps(whole | {"id": "2" * 22, "message": "\ud800"}),
        json.dumps(whole | {"id": "2" * 22, "result": {"a": 2**70}}),
        json.dumps(whole | {"id": "2" * 22, "progress": "a text of a caller"}),
        json.dumps(whole | {"id": "2" * 22, "result": {"a": "deep"}}).replace('"deep"', "[" * 900 + "]" * 900),
    ]
    for number, content in enumerate(damaged):
        folder = home / "jobs" / f"{number}".rjust(22, "2")
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(content.replace("2" * 22, folder.name))
    (home / "jobs" / "junk").mkdir()
    with start_app(home=home) as app:
        listed = app.client.get("/jobs").json()
        assert len(listed) == len(damaged)
        assert all(job["state"] == "failed" and "damaged" in job["error"] for job in listed)
        assert not any("a text of a caller" in job["error"] for job in listed)
        assert app.client.get("/metrics").status_code == 200


def test_a_stream_of_job_events_does_not_delay_shutdown(server, texts):
    job_id = server.submit(texts[:3000])
    server.wait(job_id, "running")
    with server.client.stream("GET", f"/jobs/{job_id}/events") as stream:
        next(stream.iter_lines())
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(40) == 0
        assert time.monotonic() - begun < 10
    os.kill(running_pid(server.home, job_id), signal.SIGKILL)


@pytest.fixture(scope="module")
def proxy():
    """Listen as a proxy that never answers, so that connection attempts are noticed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.5)
        yield listener


@pytest.fixture(scope="module")
def locked_in(serving, proxy, tmp_path_factory):
    """A server that can neither write its state folder nor reach anything but the proxy."""
    file = tmp_path_factory.mktemp("locked") / "file"
    file.write_text("in the way")
    url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
    variables = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), url)
    with serving(file / "home", LATHE_ADMIN_KEYS="boss", **variables) as server:
        yield server


def test_the_greeting_warns_of_a_damaged_chain_and_of_an_unreachable_redis(serving, tmp_path):
    version = tmp_path / "chains" / "old" / "1"
    version.mkdir(parents=True)
    (version / "manifest.json").write_text('{"format": 0}')
    (tmp_path / "chains" / "old" / "pointer.json").write_text('{"live": 1, "earlier": [], "last": 1}')
    with serving(tmp_path) as alone, serving(tmp_path, LATHE_REDIS_URL="redis://127.0.0.1:1/0") as shared:
        (chain,), (redis,) = (
            [line for line in "".join(server.greeting).splitlines() if line.startswith("Warning: ")]
            for server in (alone, shared)
        )
    assert chain.startswith("Warning: the chain old cannot be used") and chain.endswith("'schema_version' is missing")
    assert redis.startswith("Warning: Redis cannot be reached") and redis.endswith("administration wait for it")


def test_a_public_server_without_api_keys_says_so_and_its_example_request_has_the_admin_key(serving, tmp_path):
    with serving(tmp_path, LATHE_HOST="0.0.0.0") as server:
        greeting = "".join(server.greeting)
        (warning,) = [line for line in greeting.splitlines() if line.startswith("Warning: ")]
        assert warning == (
            "Warning: other machines can reach 0.0.0.0 and no API keys are set, so every request needs the admin key "
            f"in {tmp_path}/admin.key; set LATHE_API_KEYS for clients"
        )
        assert (tmp_path / "admin.key").read_text().strip() not in greeting
        assert f"curl {server.url}/embed -H 'content-type: application/json' -H \"authorization: Bearer $(" in greeting
        assert server.client.post("/embed", json={"inputs": "x"}).status_code == 401

        key = (tmp_path / "admin.key").read_text().strip()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
            assert len(client.embeddings.create(input="x", model="all-MiniLM-L6-v2").data[0].embedding) == 384


def test_an_unwritable_state_folder_disables_only_requests_that_write(locked_in):
    assert "cannot be written" in "".join(locked_in.greeting)
    assert locked_in.client.get("/health/ready").json()["warnings"]
    answer = locked_in.client.post("/embed", json={"inputs": "x", "dimensions": 64})
    assert answer.headers["x-chain"] == "compact@1"
    body = {"name": "mine", "steps": [{"kind": "r2"}], "source": {"path": "pydoc:"}}
    boss = {"authorization": "Bearer boss"}
    for method, path in [("post", "/fit-transform"), ("post", "/chains/compact/rollback"), ("delete", "/jobs/abc")]:
        answer = locked_in.client.request(method, path, json=body, headers=boss)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "state_unwritable")


def test_embed_makes_no_network_connection(locked_in, proxy):
    assert locked_in.client.post("/embed", json={"inputs": "x", "dimensions": 64}).status_code == 200
    with pytest.raises(TimeoutError):
        proxy.accept()


def test_a_request_with_too_many_headers_is_answered_431(locked_in):
    answer = locked_in.client.get("/health/live", headers={f"a{number}": "b" for number in range(100)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (431, "headers_too_large")


def test_serve_exits_with_one_line_if_the_port_is_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [*LATHE, "serve", "--port", str(taken.getsockname()[1])]
        ended = subprocess.run(
            command, env=os.environ | {"LATHE_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60
        )
    assert ended.returncode != 0
    assert "in use" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.trial
def test_fit_of_10000_vectors_takes_less_than_150_mb_more_memory_than_of_1000(tmp_path):
    """The peak memory of a fit grows little more than the vectors themselves."""
    rows = np.random.default_rng(0).normal(size=(10_000, 384)).astype(np.float32)
    for count in (1000, 10_000):
        np.save(tmp_path / f"{count}.npy", rows[:count])
    script = (
        "import resource, sys\n"
        "from lathe.service.cli.main import main\n"
        "for source in sys.argv[1:]:\n"
        "    sys.argv = ['lathe', 'fit', '--name', 'm', '--steps', 'r2,geopres:32,steps=40', '--source', source]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code, end\n"
        "    print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    command = [sys.executable, "-P", "-c", script, *(str(tmp_path / f"{count}.npy") for count in (1000, 10_000))]
    environment = os.environ | {"LATHE_HOME": str(tmp_path / "home")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    few, many = (int(line.split()[1]) / 1024 for line in ended.stdout.splitlines() if line.startswith("peak"))
    assert many - few < 150, (few, many)
    assert Path(tmp_path / "home/chains/m/2/manifest.json").is_file()
