"""A connection to Ray: to a cluster that runs already, or to one of this machine for as long as it is wanted."""

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from training.errors import EngineError

SHORT = "/tmp"
"""Ray's sockets lie below, whose paths have 107 bytes at most."""

PREFIX = "lathe-ray-"
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 15.0
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of a future of its own
}
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""What makes Ray listen on 127.0.0.1 alone, on every system; else anybody in reach could run code through its ports."""

TRY = "import sys, logging, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)"


@contextmanager
def cluster(address: str | None, cores: int) -> Iterator[list[int]]:
    """Be connected to Ray; gives the CPU cores of each of its nodes.

    Args:
        address: HOST:PORT of a cluster that this machine is a node of; None starts Ray here, on the loopback only, and
            ends it afterwards.
        cores: that a Ray started here may use.

    Raises:
        EngineError: if Ray is not installed, cannot be started, or nothing answers.
    """
    if find_spec("ray") is None:
        raise EngineError("the engine ray needs Ray: pip install 'lathe[ray]'")
    os.environ |= QUIET | (LOOPBACK if address is None else {})  # read when Ray is imported, and by what it starts
    wanted: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    folder = None
    if address is None:
        folder = make_folder(Path(SHORT if Path(SHORT).is_dir() else tempfile.gettempdir()))
        wanted |= {"address": "local", "num_cpus": cores, "include_dashboard": False, "_temp_dir": folder}
    else:
        require_answer(address)
    import ray

    try:
        try:
            ray.init(**wanted)
        except (OSError, RuntimeError, ValueError) as error:
            raise EngineError(f"Ray cannot be used: {error}") from error
        yield [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def make_folder(below: Path) -> str:
    """A folder for Ray's logs and sockets, named after this process; those of processes that were killed go."""
    for old in below.glob(f"{PREFIX}*-*"):
        owner = old.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(old, ignore_errors=True)  # of another user's nothing can be removed
    return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=below)


def require_answer(address: str) -> None:
    """Raise `EngineError` unless a cluster answers there, within about 20 s.

    Another process tries first: Ray ends the one that finds nothing.
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
        tried = subprocess.run(
            [sys.executable, "-c", TRY, address], capture_output=True, text=True, timeout=ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"no Ray cluster answers at {address} within {ANSWER_SECONDS:.0f} s") from None
    if tried.returncode != 0:
        said = [line for line in tried.stderr.splitlines() if line.strip()]
        raise EngineError(f"the Ray cluster at {address} cannot be used: {said[-1] if said else 'it does not answer'}")
