"""`--engine ray`, on a Ray that the command starts and ends."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.helpers import LATHE, find_free_port

pytestmark = [
    pytest.mark.services,
    pytest.mark.release,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(300),
]
RAY = ["--engine", "ray", "--workers", 2]


@pytest.fixture(scope="module")
def texts(tmp_path_factory, paragraphs):
    path = tmp_path_factory.mktemp("texts") / "some.jsonl"
    lines = [*paragraphs[:60], "  ", *paragraphs[60:120]]
    path.write_text("\n".join(json.dumps({"id": i, "text": t}) for i, t in enumerate(lines)))
    return path


def test_fit_prints_one_line_if_no_ray_cluster_answers_at_the_address(run, texts):
    where = f"127.0.0.1:{find_free_port()}"
    status, _, err = run("fit", "--name", "a", "--steps", "r2", "--source", texts, *RAY, "--address", where)
    assert status == 1 and err.startswith("lathe: no Ray cluster answers at") and len(err.strip().splitlines()) == 1


def test_ctrl_c_stops_the_started_ray_its_workers_and_its_folder(home, texts):
    before = set(Path("/tmp").glob("lathe-ray-*"))
    words = ["embed", "--source", str(texts), "--out", str(texts.with_name("x.npy")), *map(str, RAY)]
    child = subprocess.Popen(
        [*LATHE, *words], env=os.environ | {"LATHE_HOME": str(home)}, stderr=subprocess.PIPE, start_new_session=True
    )
    with child:
        deadline = time.monotonic() + 100
        while not (tokens := list((home / "vectors").glob("*/.seen-by-workers"))):
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        assert tokens
        [folder] = set(Path("/tmp").glob("lathe-ray-*")) - before
        os.killpg(child.pid, signal.SIGINT)
        assert "the same command continues from there" in child.stderr.read().decode().splitlines()[-1]
    assert child.returncode == 130
    assert not folder.exists()
    time.sleep(2)
    running = [path for path in Path("/proc").glob("[0-9]*/cmdline") if folder.name.encode() in read(path)]
    assert not running


def read(path):
    """Return a file's bytes, or none if the process it belongs to has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
