"""Helpers for tests of several folders: the command `lathe`, free ports, and waiting for a condition."""

import socket
import sys
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

LATHE = [sys.executable, "-P", "-c", "from lathe.service.cli.main import main; main()"]
"""The command `lathe` of this checkout, in a process of its own."""


def eventually(condition: Callable[[], Found], seconds: float = 60.0) -> Found:
    """Wait until a condition holds, and return what it returned. Raise `AssertionError` if it takes too long."""
    deadline, pause = time.monotonic() + seconds, 0.005
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{condition} did not hold within {seconds} s"
        time.sleep(pause)
        pause = min(2 * pause, 0.05)  # asking takes a core from what is waited for
    return found


def find_free_port() -> int:
    """Return a port of the loopback address that no process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
    return port


def accepts_connections(port: int) -> bool:
    """Return whether a process listens on a port of the loopback address."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def require_one_line(ended, *words):
    """Assert that a command, given as status, stdout and stderr, failed with one line on stderr with all words."""
    status, printed, err = ended
    assert (status, printed) == (1, "")
    assert err.startswith("lathe: ") and len(err.splitlines()) == 1
    assert all(word in err for word in words), err
