"""What the tests of the containers and the cluster share."""

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REQUIRED = ("LATHE_API_KEYS", "LATHE_ADMIN_KEYS", "REDIS_PASSWORD", "GRAFANA_PASSWORD")
START_SECONDS = 10


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def dockerfile():
    """The module that reads Dockerfiles, which lies beside them."""
    spec = importlib.util.spec_from_file_location("dockerfile", ROOT / "docker/dockerfile.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tool() -> Callable[..., subprocess.CompletedProcess]:
    """Runs a program that the development extras bring, with nothing set but what is given."""

    def run(name: str, *words: str, **variables: str) -> subprocess.CompletedProcess:
        program = Path(sysconfig.get_path("scripts")) / name
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables}
        return subprocess.run([program, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture(scope="session")
def composed(tool) -> dict:
    """docker-compose.yml as Compose itself understands it, all profiles, with only what must be filled in."""
    done = tool(
        "docker-compose", "--profile", "*", "config", "--format", "json", **dict.fromkeys(REQUIRED, "something")
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def start_nginx(tmp_path_factory) -> Iterator[Callable[..., int]]:
    """Starts a real nginx with the configuration as shipped, but for addresses and what a test replaces; its port."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    assert program, "nginx is missing: apt-get install nginx, or `make test` for the tests that take no services"
    running = []

    def start(api: list[int], index: int, replaced: dict[str, str] | None = None) -> int:
        folder = tmp_path_factory.mktemp("nginx")
        port = free_port()
        write_configuration(folder, port, api, index, replaced or {})
        root = ["-g", "user root;"] if os.geteuid() == 0 else []  # else its workers could not enter the folder
        words = [program, "-e", "stderr", "-c", str(folder / "nginx.conf"), *root]
        tried = subprocess.run([*words, "-t"], capture_output=True, text=True)
        assert tried.returncode == 0, tried.stderr
        words[-1:] = [words[-1] + " daemon off;"] if root else [words[-1], "-g", "daemon off;"]
        running.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
        await_port(port)
        return port

    yield start
    for process in running:
        process.terminate()
        process.wait(START_SECONDS)


def write_configuration(folder: Path, port: int, api: list[int], index: int, replaced: dict[str, str]) -> None:
    """The shipped files, with 127.0.0.1 in place of names, and a folder in place of /tmp."""
    main = (ROOT / "docker/nginx/nginx.conf").read_text()
    for old, new in {"listen 8080;": f"listen 127.0.0.1:{port};", " /tmp/": f" {folder}/", **replaced}.items():
        assert old in main, f"{old} is not in nginx.conf"
        main = main.replace(old, new)
    upstreams = re.sub(r"^resolver .*;$", "", (ROOT / "docker/nginx/upstreams.conf").read_text(), flags=re.MULTILINE)
    for name, ports in {"api": api, "index": [index]}.items():
        upstreams, found = re.subn(
            rf"^ *server {name}:8080 resolve( .*)?;$",
            lambda line, ports=ports: "\n".join(f"server 127.0.0.1:{port}{line[1] or ''};" for port in ports),
            upstreams,
            flags=re.MULTILINE,
        )
        assert found == 1, f"upstreams.conf has no server {name}:8080"
    (folder / "nginx.conf").write_text(main)
    (folder / "upstreams.conf").write_text(upstreams)


def free_port() -> int:
    """A port of the loopback that nobody has."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def await_port(port: int) -> None:
    """Wait until somebody listens there."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"nothing listens on {port}"
            time.sleep(0.02)
