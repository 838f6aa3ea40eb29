"""Mistakes in how a container is run, as far as they show without one: `tests/containers/bad_input.py` has the rest."""

import os
import subprocess

import pytest

from tests.helpers import LATHE


@pytest.mark.release
@pytest.mark.parametrize(
    ("command", "environment", "said"),
    [
        ("serve", {"LATHE_HOST": "0.0.0.0", "LATHE_HOME": "file/home"}, "no admin key can be generated"),
        ("worker", {"LATHE_REDIS_URL": ""}, "set LATHE_REDIS_URL"),
        ("worker", {"LATHE_REDIS_URL": "redis://127.0.0.1:1/0", "LATHE_HOME": "file/home"}, "cannot be written"),
    ],
)
def test_a_container_that_cannot_start_says_why_in_one_line(tmp_path, command, environment, said):
    (tmp_path / "file").write_text("")
    home = tmp_path / environment.get("LATHE_HOME", "home")
    port = ["--port", "0", "--host", "0.0.0.0"] if command == "serve" else []
    told = {**os.environ, **environment, "LATHE_HOME": str(home)}

    done = subprocess.run([*LATHE, command, *port], env=told, capture_output=True, text=True, timeout=120)

    assert done.returncode == 1
    assert done.stderr.startswith("lathe: ") and said in done.stderr
    assert len(done.stderr.splitlines()) == 1
