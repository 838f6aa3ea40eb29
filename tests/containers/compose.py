"""The containers of docker-compose.yml, and requests to them through the proxy."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from tests.containers.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
OVERRIDE = Path(__file__).parent / "override.yml"
URL = "http://127.0.0.1:8080"
KEY, ADMIN = "use", "admin"
ENVIRONMENT = {
    "LATHE_API_KEYS": KEY,
    "LATHE_ADMIN_KEYS": ADMIN,
    "REDIS_PASSWORD": "secret",
    "GRAFANA_PASSWORD": "unused",
    "CPUS": "1",
}

POLL_SECONDS = 0.5
REDIS_SIZE = "512m"
"""Size of Redis's volume, which a trial fills up."""


class Compose:
    """The services of docker-compose.yml on a running engine.

    Args:
        engine: the engine.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        folder = engine.folder / "redis"
        folder.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={REDIS_SIZE},mode=1777", "tmpfs", folder], check=True)
        self.environment = {**engine.environment, **ENVIRONMENT, "REDIS_FOLDER": str(folder)}
        program = str(Path(sys.executable).parent / "docker-compose")
        self.command = [program, "--file", str(ROOT / "docker-compose.yml"), "--file", str(OVERRIDE)]
        self.client = httpx2.Client(base_url=URL, timeout=60)

    def run(self, *words: str) -> str:
        """Run a command of Compose and return its output.

        Raises:
            RuntimeError: if it fails.
        """
        done = subprocess.run(
            [*self.command, "--progress", "quiet", *words],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"docker compose {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def up(self, *words: str) -> None:
        """Start or update services without building or pulling images."""
        self.run("up", "--no-build", "--pull", "never", "--detach", *words)

    def list_containers(self, service: str) -> list[str]:
        """Return the ids of a service's running containers."""
        return self.run("ps", "--quiet", service).split()

    def is_healthy(self, service: str, count: int = 1) -> bool:
        """Return whether a service has `count` running containers, all healthy."""
        label = f"label=com.docker.compose.service={service}"
        states = self.engine.docker("ps", "--filter", label, "--format", "{{.Status}}").splitlines()
        return len(states) == count and all("(healthy)" in state for state in states)

    def kill_process(self, container: str) -> None:
        """Kill a container's main process, as the kernel does when memory is short. The engine starts it again."""
        pid = self.engine.docker("inspect", "--format", "{{.State.Pid}}", container)
        subprocess.run(["kill", "-KILL", pid], check=True)

    def read_log(self, service: str) -> str:
        """Return the log of a service's containers."""
        return self.run("logs", "--no-log-prefix", service)

    def ask(self, method: str, path: str, key: str = ADMIN, **body: Any) -> httpx2.Response:
        """Send a request through the proxy."""
        headers = {"authorization": f"Bearer {key}"}
        return self.client.request(method, path, headers=headers, json=body or None)

    def tell(self, method: str, path: str, **body: Any) -> Any:
        """Send a request that must succeed and return its JSON.

        Raises:
            RuntimeError: if the status is not 2xx.
        """
        answer = self.ask(method, path, **body)
        if not answer.is_success:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()

    def submit_fit(self, name: str, steps: int) -> httpx2.Response:
        """Submit a fit of so many training steps and return the answer."""
        chain = [{"kind": "r2"}, {"kind": "geopres", "dimensions": 16, "steps": steps}]
        texts = [f"Sentence {number} of {name} is about item {number % 17}." for number in range(100)]
        return self.ask("POST", "/fit-transform", name=name, steps=chain, source={"texts": texts})

    def start_fit(self, name: str, steps: int) -> str:
        """Submit a fit of so many training steps, wait until it runs, and return the path of its job."""
        path: str = self.submit_fit(name, steps).raise_for_status().json()["status_url"]
        wait_until(lambda: self.tell("GET", path)["state"] != "queued", f"fit {name} running")
        return path


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 400.0) -> float:
    """Wait until a condition holds and return the seconds it took.

    Raises:
        RuntimeError: if it does not hold in time; names `what`.
    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise RuntimeError(f"after {seconds:.0f} s: not {what}")
        time.sleep(POLL_SECONDS)
    return round(time.monotonic() - began, 1)
