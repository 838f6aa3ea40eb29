"""Connection to Ray: to a running cluster, or to a Ray started on this machine for as long as it is needed."""

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lathe.training.errors import EngineError

SHORT = "/tmp"
"""Folder for Ray's files; its sockets' paths may have 107 bytes at most."""

PREFIX = "lathe-ray-"
"""Beginning of the name of a folder for Ray's files; the process id follows."""

CONNECT_SECONDS = 5.0
"""Seconds to wait for a connection to a cluster's port."""

ANSWER_SECONDS = 15.0
"""Seconds to wait for a test process to connect to Ray."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of a future of its own
}
"""Environment variables that turn off Ray's usage statistics and a warning."""

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Environment variable that makes Ray listen on 127.0.0.1 only, on every system; otherwise anybody who reaches its
ports could run code."""

TRY = "import sys, logging, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)"
"""Program of the process that tests whether a cluster accepts a connection."""


@contextmanager
def connect_cluster(address: str | None, cores: int) -> Iterator[list[int]]:
    """Connect to a Ray cluster, or start Ray on this machine, and yield the number of CPU cores of each live node.
    After the block, the connection is closed.

    Sets environment variables of this process. A Ray started here is shut down after the block, and its folder deleted.

    Args:
        address: HOST:PORT of a cluster that this machine is a node of; None starts Ray here, on the loopback only.
        cores: CPU cores that a Ray started here may use.

    Raises:
        EngineError: if Ray is not installed, cannot be started, or does not answer.
    """
    if find_spec("ray") is None:
        raise EngineError("the engine ray needs Ray: pip install 'lathe-training[ray]'")

    os.environ |= QUIET | (LOOPBACK if address is None else {})  # read when Ray is imported, and by what it starts
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address is not None:
        # Before Ray is imported into this process, which it would kill if no cluster answers.
        _require_answer(address)

    folder = make_ray_folder(Path(SHORT if Path(SHORT).is_dir() else tempfile.gettempdir()))
    if address is None:
        options |= {"address": "local", "num_cpus": cores, "include_dashboard": False, "_temp_dir": folder}

    import ray

    try:
        try:
            with chdir(folder):  # Ray's workers import from the directory that is current here
                ray.init(**options)
        except Exception as error:  # after 30 s of starting Ray raises an error of no class of its own
            raise EngineError(f"Ray cannot be used: {error}") from error
        yield [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def make_ray_folder(below: Path) -> str:
    """Create a temporary folder for Ray's logs and sockets, named after this process, and return its path. The folders
    of processes that no longer run are deleted.
    """
    for old in below.glob(f"{PREFIX}*-*"):
        owner = old.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(old, ignore_errors=True)  # of another user's nothing can be removed
    return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=below)


def _require_answer(address: str) -> None:
    """Check that a Ray cluster answers at HOST:PORT within about 20 s.

    Another process connects first, because Ray kills a process that finds no cluster.

    Raises:
        EngineError: if the address has another form, or no cluster answers.
    """
    host, _, port = address.rpartition(":")
    if not host or "://" in host or not port.isdigit():
        raise EngineError(
            f"the address of a Ray cluster is HOST:PORT, as `ray start --head` prints it, not {address!r}"
        )

    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise EngineError(f"no Ray cluster answers at {address}: {error}") from None

    try:
        attempt = subprocess.run(
            [sys.executable, "-P", "-c", TRY, address], capture_output=True, text=True, timeout=ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"no Ray cluster answers at {address} within {ANSWER_SECONDS:.0f} s") from None

    if attempt.returncode != 0:
        lines = [line for line in attempt.stderr.splitlines() if line.strip()]
        raise EngineError(
            f"the Ray cluster at {address} cannot be used: {lines[-1] if lines else 'it does not answer'}"
        )
