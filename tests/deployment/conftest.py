"""Fixtures of the tests of containers and cluster manifests."""

import json
import os
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REQUIRED = ("LATHE_API_KEYS", "LATHE_ADMIN_KEYS", "REDIS_PASSWORD", "GRAFANA_PASSWORD")


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the folder of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def tool() -> Callable[..., subprocess.CompletedProcess]:
    """Return a function that runs a program of the development extras with only the given environment."""

    def run(name: str, *words: str, **variables: str) -> subprocess.CompletedProcess:
        program = Path(sysconfig.get_path("scripts")) / name
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables}
        return subprocess.run([program, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture(scope="session")
def composed(tool) -> dict:
    """Return docker-compose.yml as Compose resolves it, with all profiles and only required variables set."""
    done = tool(
        "docker-compose", "--profile", "*", "config", "--format", "json", **dict.fromkeys(REQUIRED, "something")
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
