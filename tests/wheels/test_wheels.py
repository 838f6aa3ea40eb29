"""The wheels, used in a folder whose files have the names of our packages and of other people's modules."""

import json
import os
import re
import subprocess
import threading
import time
import zipfile

import httpx2
import numpy as np
import pytest

from lathe.service.http.routes.dashboard import read_assets
from tests.wheels.environment import build, create_environment, run

pytestmark = [pytest.mark.services, pytest.mark.release]

MODULES = (
    *(
        "service",
        "training",
        "transforms",
        "json",
        "logging",
        "random",
        "types",
        "socket",
        "asyncio",
        "multiprocessing",
    ),
    *(
        "numpy",
        "torch",
        "orjson",
        "safetensors",
        "typer",
        "uvicorn",
        "ray",
        "redis",
        "pydantic",
        "sentence_transformers",
        "setproctitle",
    ),
)
"""Names of files in the working directory, each of which says so if it is imported."""

TEXTS = ("--source", "texts.jsonl", "--encoder", "brief")
"""Options of commands that encode."""

TELLTALE = "from pathlib import Path\nPath(__file__).with_suffix('.imported').touch()\nraise SystemExit('not ours')\n"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def binaries(tmp_path_factory, wheels):
    return create_environment(tmp_path_factory.mktemp("installed") / "environment", wheels)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Yield a working directory full of files that must not be imported, and assert that none was."""
    folder = tmp_path_factory.mktemp("hostile")
    for name in MODULES:
        (folder / f"{name}.py").write_text(TELLTALE)
    for name in ("service", "lathe", "training"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(TELLTALE)
    generator = np.random.default_rng(0)
    np.save(folder / "vectors.npy", (generator.normal(size=(400, 384)) + 1).astype(np.float32))
    texts = [
        f"The {word} of number {i} turns at {i % 60} rounds." for i in range(90) for word in ("lathe", "wheel", "mill")
    ]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    yield folder
    assert [str(path.relative_to(folder)) for path in folder.rglob("*.imported")] == []


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return the variables of a user without settings, whose state folder is new."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("LATHE_", "PYTHON"))}
    home = {"LATHE_HOME": str(tmp_path_factory.mktemp("home")), "LATHE_THREADS": "1", "LATHE_WORKERS": "1"}
    return mine | home | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def lathe(binaries, hostile, environment):
    """Return a function that runs the installed command in the hostile folder and returns what it printed.

    Its second encoder is quick: it has one layer and reads 16 tokens.
    """
    ours = {"name": "all-MiniLM-L6-v2", "model": "sentence-transformers/all-MiniLM-L6-v2"}
    encoders = [ours, ours | {"name": "brief", "layer": 1, "max_length": 16}]
    configured = environment | {"LATHE_ENCODERS": json.dumps(encoders)}
    return lambda *words: run(binaries / "lathe", *words, cwd=hostile, env=configured)


@pytest.fixture(scope="module")
def server(binaries, hostile, environment):
    """Yield a client of the installed server, started in the hostile folder, with the admin key."""
    command = [binaries / "lathe", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=hostile, env=environment, stderr=subprocess.PIPE, text=True) as process:
        greeting = ""
        while "fit-transform" not in greeting:
            line = process.stderr.readline()
            assert line, greeting
            greeting += line
        threading.Thread(target=process.stderr.read, daemon=True).start()
        with open(f"{environment['LATHE_HOME']}/admin.key") as file:  # noqa: PTH123
            key = {"authorization": f"Bearer {file.read().strip()}"}
        url = re.search(r"http://127\.0\.0\.1:\d+", greeting)[0]
        with httpx2.Client(base_url=url, timeout=120, headers=key) as client:
            yield client
        process.terminate()
        process.wait(60)


def test_each_wheel_has_its_own_package_and_nothing_else(wheels):
    contents = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as opened:
            contents[wheel.name.partition("-")[0]] = [name for name in opened.namelist() if ".dist-info/" not in name]
    for name in ("transforms", "training", "service"):
        assert all(path.startswith(f"lathe/{name}/") for path in contents[f"lathe_{name}"])
        assert f"lathe/{name}/py.typed" in contents[f"lathe_{name}"]
    assert all(path.startswith("lathe_client/") for path in contents["lathe_client"])
    assert len(contents) == 7
    assert not any("tests/" in path or path.endswith(".pyc") for paths in contents.values() for path in paths)


def test_the_wheel_of_the_service_contains_the_dashboard(wheels):
    (wheel,) = (one for one in wheels if one.name.startswith("lathe_service-"))
    with zipfile.ZipFile(wheel) as opened:
        for name, asset in read_assets().items():
            assert opened.read(f"lathe/service/dashboard/static/{name}") == asset.content


def test_importing_the_transforms_and_the_training_brings_neither_torch_nor_numpy(binaries, hostile):
    code = "import sys, lathe.transforms, lathe.training; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    assert run(binaries / "python", "-P", "-c", code, cwd=hostile) == "[]\n"


def test_the_installed_code_is_that_of_the_wheels(binaries, hostile):
    code = "import lathe.service.app as s, lathe.training.errors as t; print(s.__file__, t.__file__)"
    files = run(binaries / "python", "-P", "-c", code, cwd=hostile).split()
    assert all(file.startswith(str(binaries.parent)) for file in files)


def test_a_server_embeds_fits_and_indexes_in_a_hostile_folder(server):
    embedded = server.post("/embed", json={"inputs": ["What is a lathe?"], "dimensions": 128})
    assert embedded.status_code == 200 and len(embedded.json()[0]) == 128

    rows = (np.random.default_rng(1).normal(size=(300, 16)) + 1).tolist()
    body = {"name": "mine", "steps": [{"kind": "r2"}, {"kind": "pca", "dimensions": 8}], "source": {"vectors": rows}}
    job = server.post("/fit-transform", json=body).json()
    deadline = time.monotonic() + 120
    while (state := server.get(job["status_url"]).json())["state"] not in {"succeeded", "failed"}:
        assert time.monotonic() < deadline, state
        time.sleep(0.1)
    assert state["state"] == "succeeded", state

    assert server.put("/indexes/docs", json={"chain": "compact"}).status_code < 300
    answer = server.post("/indexes/docs/upsert", json={"ids": ["a", "b"], "texts": ["a lathe", "a ledger"]})
    assert answer.json()["upserted"] == 2
    found = server.post("/indexes/docs/search", json={"texts": ["turning wood"], "k": 1}).json()
    assert found["results"][0][0]["id"] == "a"


def test_clients_from_wheels_speak_to_the_server(server, binaries, hostile):
    code = "import sys; from lathe_client import Client; print(Client(sys.argv[1]).embed(['a lathe']).vectors.shape)"
    assert "384" in run(binaries / "python", "-P", "-c", code, str(server.base_url), cwd=hostile)


def test_commands_fit_reduce_export_and_import_in_a_hostile_folder(lathe, hostile):
    assert lathe("--version").startswith("lathe ")
    assert "recall_at_10" in lathe("fit", "--name", "texts", "--steps", "r2,pca:32", *TEXTS)
    lathe("embed", *TEXTS, "--chain", "texts", "--out", "compact.npy")
    assert np.load(hostile / "compact.npy").shape == (270, 32)
    lathe("export", "texts", "--to", "exported", "--format", "sentence-transformers")
    assert (hostile / "exported" / "modules.json").exists()
    assert "400" in lathe("index", "import", "--name", "own", "--source", "vectors.npy", "--chain", "compact")


def test_a_fit_by_ray_imports_nothing_from_the_folder(lathe):
    assert "fitted on" in lathe(
        *("fit", "--name", "by-ray", "--steps", "r2,pca:8", *TEXTS), "--engine", "ray", "--workers", "1"
    )


def test_the_processes_of_an_evaluation_import_nothing_from_the_folder(lathe, hostile):
    data = hostile / "suite" / "spins"
    data.mkdir(parents=True)
    rows = [
        {"sentence1": f"a lathe turns {i}", "sentence2": f"a wheel turns {i % 3}", "score": i % 5} for i in range(24)
    ]
    (data / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (data / "META.json").write_text(json.dumps({"name": "spins", "task": "sts", "language": "en"}))
    lathe("evaluate", "--suite", "suite", "--chain", "compact", "--out", "evaluated", "--processes", "1")
    assert (hostile / "evaluated" / "report.html").exists()
