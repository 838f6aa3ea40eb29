"""A cluster of a Redis, servers, workers and nginx on this machine, each a process of its own."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import httpx
import redis

from benchmarks.server import LATHE, Server, own_environment
from benchmarks.sockets import find_free_port
from lathe.training.sources.source import open_source

ADMIN = "measured"
PASSWORD = "measured"
NGINX = Path(__file__).resolve().parents[2] / "docker/nginx/nginx.conf"
SMALL_CACHES = {"LATHE_CACHE_BYTES": "4000000", "LATHE_REDIS_CACHE_BYTES": "8000000"}
"""Settings of caches that are full after a minute or two of load, so that memory that grows later is no cache's."""
UPSTREAMS = """
upstream api {{ least_conn; {servers} keepalive 64; keepalive_timeout 4s; }}
upstream index {{ server {first}; }}
"""


class Cluster:
    """A Redis with the servers, workers and nginx that use it.

    Args:
        folder: folder for their state; the caller deletes it.
        threads: number of threads of each server.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder = folder
        self.threads = threads
        self.port = find_free_port()
        self.servers: list[Server] = []
        self.others: list[subprocess.Popen[bytes]] = []
        if not shutil.which("redis-server"):
            sys.exit("this takes redis-server: apt-get install redis-server nginx")
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]
        self.redis_process = start_process(["redis-server", *options, "--dir", str(folder), "--requirepass", PASSWORD])
        self.redis = redis.Redis(port=self.port, password=PASSWORD)
        wait_until(lambda: responds(self.redis.ping))

    @property
    def environment(self) -> dict[str, str]:
        """Settings of each process, as environment variables."""
        return {
            "LATHE_REDIS_URL": f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0",
            "LATHE_ADMIN_KEYS": ADMIN,
            "LATHE_THREADS": str(self.threads),
            "LATHE_DATA_ROOT": str(self.folder),
            "OMP_NUM_THREADS": "1",
            **SMALL_CACHES,
        }

    def serve(self, name: str) -> Server:
        """Start a server on a state folder of its own, and wait until it is ready."""
        server = Server(self.folder / name, admin_key=ADMIN, **self.environment)
        self.servers.append(server)
        return server

    def work(self, name: str) -> "subprocess.Popen[bytes]":
        """Start a worker."""
        environment = own_environment(self.folder / name, **self.environment)
        self.others.append(start_process([*LATHE, "worker"], environment))
        return self.others[-1]

    def balance(self, servers: list[Server]) -> str:
        """Put nginx, configured as shipped, before servers, and return its address."""
        port, folder = find_free_port(), self.folder / f"nginx-{len(self.others)}"
        folder.mkdir()
        addresses = [server.url.removeprefix("http://") for server in servers]
        content = NGINX.read_text().replace("listen 8080;", f"listen 127.0.0.1:{port};").replace("/tmp/", f"{folder}/")
        content = re.sub(r"access_log .*requests;", "access_log off;", content)
        (folder / "nginx.conf").write_text(content)
        listed = " ".join(f"server {address} max_fails=0;" for address in addresses)
        (folder / "upstreams.conf").write_text(UPSTREAMS.format(servers=listed, first=addresses[0]))
        program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or sys.exit("this takes nginx")
        root = "user root; " if os.geteuid() == 0 else ""
        self.others.append(start_process([program, "-c", str(folder / "nginx.conf"), "-g", f"{root}daemon off;"]))
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: responds(lambda: httpx.get(f"{url}/health/proxy").status_code == 200))
        return url

    def stop(self) -> None:
        """End all processes."""
        for server in self.servers:
            if server.process.poll() is None:
                server.stop()
        for process in self.others:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        self.redis.close()
        self.redis_process.terminate()
        for process in [*self.others, self.redis_process]:
            process.wait(30)


@cache
def read_built_in_texts() -> list[str]:
    """Return English texts that are available on every machine."""
    return [text for batch in open_source("pydoc:").batches() for text in batch.values if isinstance(text, str)]


def start_process(command: list[str], environment: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
    """Start a process without output, and return it."""
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def responds(ask: Callable[[], object]) -> bool:
    """Return whether a server responds: `ask` returns a true value and raises no connection error."""
    with suppress(redis.exceptions.ConnectionError, httpx.HTTPError):
        return bool(ask())
    return False


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> float:
    """Wait for a condition, and return the seconds that took.

    Raises:
        SystemExit: if it does not hold after `seconds`.
    """
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > seconds:
            sys.exit("what was waited for did not happen")
        time.sleep(0.02)
    return time.monotonic() - begun
