"""A real server process with the real model over HTTP: killed, restarted, stopped, and without network or disk."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from lathe.service.cli.server import _format_greeting, limit_this_thread_to_one_core, list_start_warnings
from tests.helpers import eventually


@pytest.fixture
def proxy():
    """Listen as a proxy that never answers, so that connection attempts are noticed. Return its variables."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield (
            listener,
            dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), f"http://127.0.0.1:{listener.getsockname()[1]}"),
        )


def damage_chain(home):
    """Write a live chain that cannot be used."""
    version = home / "chains" / "old" / "1"
    version.mkdir(parents=True)
    (version / "manifest.json").write_text('{"format": 0}')
    (home / "chains" / "old" / "pointer.json").write_text('{"live": 1, "earlier": [], "last": 1}')


@pytest.mark.services
def test_a_killed_server_serves_its_chains_and_does_its_jobs_once_it_is_started_again(serving, home, paragraphs, proxy):
    """It asks nothing of the network."""
    listener, variables = proxy
    mine = {"inputs": paragraphs[:20], "chain": "mine"}
    with serving(home, **variables) as server:
        job = server.wait(server.submit(paragraphs[:60]), "succeeded", "failed")
        assert job["state"] == "succeeded", job["error"]
        before = server.client.post("/embed", json=mine)
        assert before.headers["x-chain"] == "mine@1"
        with pytest.raises(BlockingIOError):
            listener.accept()

        running, queued = server.submit(paragraphs, name="running"), server.submit(paragraphs[:60], name="later")
        server.wait(running, "running")
        (worker,) = server.workers()
        server.stop(signal.SIGKILL)

    with serving(home) as server:
        assert server.wait(running, "succeeded", "failed")["state"] == "succeeded"
        assert server.wait(queued, "succeeded", "failed")["result"]["chain"] == "later@1"
        after = server.client.post("/embed", json=mine)
        assert after.headers["x-space-id"] == before.headers["x-space-id"] and after.headers["x-chain"] == "mine@1"
        np.testing.assert_allclose(after.json(), before.json(), atol=1e-6)
        assert not Path(f"/proc/{worker}").exists()  # it ended with the server that was killed


@pytest.mark.services
def test_a_public_server_warns_when_it_starts_and_stops_in_time_while_events_are_streamed(serving, home, paragraphs):
    damage_chain(home)
    with serving(home, LATHE_HOST="0.0.0.0") as server:
        greeting = "".join(server.greeting)
        public, chain = (line for line in greeting.splitlines() if line.startswith("Warning: "))
        assert public == (
            "Warning: other machines can reach 0.0.0.0 and no API keys are set, so every request needs the admin key "
            f"in {home}/admin.key; set LATHE_API_KEYS for clients"
        )
        assert chain.startswith("Warning: the chain old cannot be used")
        assert chain.endswith("'schema_version' is missing")
        assert f"curl {server.url}/embed -H 'content-type: application/json' -H \"authorization: Bearer $(" in greeting
        assert server.admin["authorization"].removeprefix("Bearer ") not in greeting

        server.client.headers.update(server.admin)
        job_id = server.submit([f"{number}: {text}" for number in range(15) for text in paragraphs])
        server.wait(job_id, "running")
        with server.client.stream("GET", f"/jobs/{job_id}/events") as stream:
            next(stream.iter_lines())
            begun = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(40) == 0
            assert time.monotonic() - begun < 10  # the stream delays nothing
        os.kill(json.loads((home / "jobs" / job_id / "job.json").read_text())["pid"], signal.SIGKILL)


def test_a_killed_fit_fails_and_leaves_no_chain(start_app, new_home, paragraphs, finish):
    """A later fit of the same name succeeds."""
    many = [f"{number}: {text}" for number in range(5) for text in paragraphs]

    def submit(app, texts):
        body = {"name": "half", "steps": [{"kind": "r2"}], "source": {"texts": texts}}
        return app.client.post("/fit-transform", json=body, headers=app.admin).json()["job_id"]

    with start_app(home=new_home()) as app:
        job_id = submit(app, many)
        eventually(lambda: app.client.get(f"/jobs/{job_id}").json()["progress"] > 0)
        os.kill(json.loads((app.settings.home / "jobs" / job_id / "job.json").read_text())["pid"], signal.SIGKILL)
        job = finish(job_id, app, seconds=5)
        assert job["state"] == "failed" and "killed" in job["error"] and job["finished_at"]
        assert app.client.get("/chains/half").status_code == 404
        assert "half" not in {chain["name"] for chain in app.client.get("/chains").json()}
        assert app.client.post("/embed", json={"inputs": "x", "dimensions": 48}).headers["x-chain"] == "compact@1"

        cancelled = submit(app, many)
        eventually(lambda: app.client.get(f"/jobs/{cancelled}").json()["state"] == "running")
        assert app.client.delete(f"/jobs/{cancelled}", headers=app.admin).json()["state"] == "cancelled"
        assert finish(submit(app, paragraphs[:60]), app)["result"]["chain"] == "half@1"


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
    with start_app(indexes_only=True, home=home) as app:
        listed = app.client.get("/jobs").json()
        assert len(listed) == len(damaged)
        assert all(job["state"] == "failed" and "damaged" in job["error"] for job in listed)
        assert not any("a text of a caller" in job["error"] for job in listed)
        assert app.client.get("/metrics").status_code == 200


def test_an_unwritable_state_folder_disables_only_requests_that_write(start_app, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with start_app(home=tmp_path / "file" / "home", admin_keys="boss") as app:
        assert any("cannot be written" in warning for warning in list_start_warnings(app.services))
        assert app.client.get("/health/ready").json()["warnings"]
        answer = app.client.post("/embed", json={"inputs": "x", "dimensions": 64})
        assert answer.headers["x-chain"] == "compact@1"
        body = {"name": "mine", "steps": [{"kind": "r2"}], "source": {"path": "pydoc:"}}
        for method, path in [("post", "/fit-transform"), ("post", "/chains/compact/rollback"), ("delete", "/jobs/abc")]:
            answer = app.client.request(method, path, json=body, headers=app.admin)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "state_unwritable")


def test_the_start_warns_of_an_unreachable_redis_and_of_damaged_size_routes(start_app, tmp_path):
    with start_app(indexes_only=True, home=tmp_path / "redis", redis_url="redis://127.0.0.1:1/0") as app:
        (warning,) = list_start_warnings(app.services)
    assert warning.startswith("Redis cannot be reached") and warning.endswith("administration wait for it")
    (tmp_path / "routes").mkdir(mode=0o700)
    (tmp_path / "routes" / "size_routes.json").write_text("{")
    with start_app(indexes_only=True, home=tmp_path / "routes") as app:
        (warning,) = list_start_warnings(app.services)
        assert "http://127.0.0.1:8080" in _format_greeting(app.settings, app.services, 8080)
        assert app.client.post("/reduce", json={"vectors": [[1.0] * 384], "chain": "compact"}).status_code == 200
    assert warning.startswith("size_routes.json cannot be read")


@pytest.mark.release
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


def test_limit_this_thread_to_one_core_leaves_the_number_given_to_later_threads():
    found, before = [], torch.get_num_threads()

    def count_threads():
        found.append(torch.get_num_threads())

    def limit():
        limit_this_thread_to_one_core(3)
        for _ in range(2):
            later = threading.Thread(target=count_threads)
            later.start()
            later.join()
        torch.ones(300, 300) @ torch.ones(300, 300)
        count_threads()

    try:
        limited = threading.Thread(target=limit)
        limited.start()
        limited.join()
    finally:
        torch.set_num_threads(before)
    assert found == [3, 3, 1]
