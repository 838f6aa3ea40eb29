"""The real server process with the real model, over real HTTP."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

LATHE = [sys.executable, "-c", "from service.cli.main import main; main()"]


@pytest.fixture
def home(new_home):
    return new_home()


def test_the_whole_path_over_http_and_again_after_a_restart(serving, home, run, paragraphs, tmp_path):
    with serving(home) as server:
        assert server.seconds < 30
        assert server.client.get("/health/ready").status_code == 200
        greeting = "".join(server.greeting)
        assert greeting.count("curl") == 3 and server.admin["authorization"][7:] not in greeting

        raw = server.client.post("/embed", json={"inputs": paragraphs[:20]}).json()
        job = server.wait(server.submit(paragraphs[:120]), "succeeded", "failed")
        assert job["state"] == "succeeded", job["error"]
        mine = server.client.post("/embed", json={"inputs": paragraphs[:20], "chain": "mine"})
        assert mine.headers["x-chain"] == "mine@1"
        reduced = server.client.post("/reduce", json={"vectors": raw, "chain": "mine"}).json()["vectors"]
        np.testing.assert_allclose(reduced, mine.json(), atol=1e-5)

        # A fit on the command line is served by the running server at once.
        (tmp_path / "some.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in paragraphs[:60]))
        assert run("fit", "--name", "side", "--steps", "r2", "--source", tmp_path / "some.jsonl")[0] == 0
        side = server.client.post("/embed", json={"inputs": "text", "chain": "side"})
        assert side.headers["x-chain"] == "side@1"
        assert server.stop() == 0

    with serving(home) as server:
        assert server.seconds < 30
        again = server.client.post("/embed", json={"inputs": paragraphs[:20], "chain": "mine"})
        assert again.headers["x-space-id"] == mine.headers["x-space-id"]
        np.testing.assert_allclose(again.json(), mine.json(), atol=1e-6)
        assert server.client.get(f"/jobs/{job['id']}").json() == job


@pytest.fixture(scope="module")
def proxy():
    """Every client library honours the proxy; this one never answers, but what called it can be counted."""
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


def test_a_state_folder_that_cannot_be_written_takes_away_fits_and_nothing_else(locked_in):
    assert "cannot be written" in "".join(locked_in.greeting)
    assert locked_in.client.get("/health/ready").json()["warnings"]
    answer = locked_in.client.post("/embed", json={"inputs": "x", "dimensions": 64})
    assert answer.headers["x-chain"] == "compact@1"
    body = {"name": "mine", "steps": [{"kind": "r2"}], "source": {"path": "pydoc:"}}
    boss = {"authorization": "Bearer boss"}
    for method, path in [("post", "/fit-transform"), ("post", "/chains/compact/rollback"), ("delete", "/jobs/abc")]:
        answer = locked_in.client.request(method, path, json=body, headers=boss)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "state_unwritable")


def test_nothing_is_fetched_from_anywhere(locked_in, proxy):
    assert locked_in.client.post("/embed", json={"inputs": "x", "dimensions": 64}).status_code == 200
    with pytest.raises(TimeoutError):
        proxy.accept()


def test_a_request_of_too_many_headers_is_refused_before_it_is_served(locked_in):
    answer = locked_in.client.get("/health/live", headers={f"a{number}": "b" for number in range(100)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (431, "headers_too_large")


def test_a_port_in_use_ends_the_command_with_a_line(home):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [*LATHE, "serve", "--port", str(taken.getsockname()[1])]
        ended = subprocess.run(
            command, env=os.environ | {"LATHE_HOME": str(home)}, capture_output=True, text=True, timeout=60
        )
    assert ended.returncode != 0
    assert "in use" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.trial
def test_ten_thousand_texts_are_fitted_in_bounded_memory(tmp_path):
    """Peak memory of a fit of 10,000 vectors is that of 1,000 and what those vectors themselves take."""
    rows = np.random.default_rng(0).normal(size=(10_000, 384)).astype(np.float32)
    for count in (1000, 10_000):
        np.save(tmp_path / f"{count}.npy", rows[:count])
    script = (
        "import resource, sys\n"
        "from service.cli.main import main\n"
        "for source in sys.argv[1:]:\n"
        "    sys.argv = ['lathe', 'fit', '--name', 'm', '--steps', 'r2,geopres:32,steps=40', '--source', source]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code, end\n"
        "    print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    command = [sys.executable, "-c", script, *(str(tmp_path / f"{count}.npy") for count in (1000, 10_000))]
    environment = os.environ | {"LATHE_HOME": str(tmp_path / "home")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    few, many = (int(line.split()[1]) / 1024 for line in ended.stdout.splitlines() if line.startswith("peak"))
    assert many - few < 150, (few, many)
    assert Path(tmp_path / "home/chains/m/2/manifest.json").is_file()
