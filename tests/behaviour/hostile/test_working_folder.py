"""Every way in which a process of ours is started, in a folder whose files have the names of modules: none is executed.

The wheels are tried the same way by `tests/wheels`: fits with Ray and evaluations with the installed command.
"""

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import LATHE, eventually
from tests.service.processes.started import MODULE, SECONDS, Started, closing

ROOT = Path(__file__).resolve().parents[3]

FILES = ("setproctitle", "json", "logging", "socket", "random", "numpy", "torch", "orjson", "ray", "redis", "lathe")
"""Names of modules in the folder."""
FOLDERS = ("service", "training", "transforms", "lathe", "tests", "setproctitle")
"""Names of packages in the folder; a package is found before a module."""

TELLTALE = """import os
open(os.path.splitext(__file__)[0] + ".executed", "w").close()
raise SystemExit("not a file of ours")
"""


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """Make a folder full of files that must not be executed the working directory, and assert that none was."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in FILES:
        (folder / f"{name}.py").write_text(TELLTALE)
    for name in FOLDERS:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(TELLTALE)
    monkeypatch.chdir(folder)
    # Only what is installed, or where this checkout's packages are, may be searched: an empty entry is the folder.
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *paths]))
    yield folder
    assert [str(path.relative_to(folder)) for path in folder.rglob("*.executed")] == []


@pytest.mark.parametrize("kind", ["forked", "spawned"])
def test_the_fork_server_and_new_pythons_execute_nothing_of_the_folder(kind, hostile):
    from lathe.service.processes.client import ForkServer
    from lathe.service.processes.program import Spawner

    preloaded = ("lathe.service.key_file", MODULE)
    with closing(ForkServer(preloaded) if kind == "forked" else Spawner()) as starter:
        started = Started(starter)
        with started.socket:
            assert started.about()["folder"] == str(hostile)
            assert started.end() == 0


@pytest.mark.services
def test_a_server_its_encoder_and_its_fits_execute_nothing_of_the_folder(hostile, serving, tmp_path):
    with serving(tmp_path / "home") as server:
        assert len(server.client.post("/embed", json={"inputs": ["a lathe"]}).json()[0]) == 384
        rows = (np.random.default_rng(0).normal(size=(300, 16)) + 1).tolist()
        body = {"name": "mine", "steps": [{"kind": "r2"}, {"kind": "pca", "dimensions": 8}]}
        answer = server.client.post("/fit-transform", json=body | {"source": {"vectors": rows}}, headers=server.admin)
        assert answer.status_code == 202, answer.text
        assert server.wait(answer.json()["job_id"], "succeeded", "failed")["state"] == "succeeded"


def test_commands_execute_nothing_of_the_folder(hostile, tmp_path):
    np.save(hostile / "rows.npy", (np.random.default_rng(0).normal(size=(300, 16)) + 1).astype(np.float32))
    fit = ("fit", "--name", "mine", "--steps", "r2,pca:8", "--source", "rows.npy")
    for words in (("--version",), fit):
        ended = subprocess.run(
            [*LATHE, *words],
            env=os.environ | {"LATHE_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert "Traceback" not in ended.stderr and "not a file of ours" not in ended.stderr, ended.stderr


@pytest.mark.release
@pytest.mark.services
def test_a_worker_of_shared_jobs_executes_nothing_of_the_folder(hostile, redis_server, tmp_path):
    settings = {"LATHE_HOME": str(tmp_path / "home"), "LATHE_REDIS_URL": redis_server.url}
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen([*LATHE, "worker"], env=os.environ | settings, stdout=log, stderr=log)
    try:
        eventually(lambda: b"taking jobs" in (tmp_path / "log").read_bytes() or worker.poll() is not None)
    finally:
        worker.terminate()
        assert worker.wait(SECONDS) in (0, -signal.SIGTERM), (tmp_path / "log").read_text()


@pytest.mark.parametrize("name", ["Makefile", "docker", "docker-compose.yml", "k8s"])
def test_make_and_containers_run_modules_of_ours_with_the_option_that_leaves_the_working_directory_out(name):
    paths = [path for path in (ROOT / name).rglob("*") if path.is_file()] or [ROOT / name]
    lines = [line for path in paths for line in path.read_text(errors="replace").splitlines() if "-m lathe." in line]
    assert [line for line in lines if "python -P " not in line] == []
    assert lines or name not in ("Makefile", "docker")
