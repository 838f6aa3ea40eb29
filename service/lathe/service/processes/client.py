"""The server's side of the fork server: starts it, requests processes from it, and monitors them."""

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from lathe.service.processes.fork_server import BOUND, LASTING, NUMBER, PRELOADED, SINGLE_THREADED
from lathe.service.processes.program import (
    PYTHON_MODULE,
    ProcessStarter,
    Program,
    Spawner,
    get_environment_without_keys,
)

LOST = -signal.SIGHUP
"""Exit status of a process that could not be forked, or whose fork server was killed, so that its own is unknown."""

GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""Device files that the drivers of NVIDIA, AMD and WSL create."""

log = logging.getLogger(__name__)


class ForkServer:
    """A process that has imported the libraries, and starts programs as its forks.

    A start takes milliseconds. The process is started by the first program or by `warm_up`, and again if it was killed.
    When this process ends, for any reason, so does the fork server, which then kills all programs that are not lasting.
    """

    def __init__(self, preloaded: Sequence[str] = PRELOADED) -> None:
        """Store the module names without starting the process."""
        self._preloaded = preloaded
        self._control: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._guard = threading.Lock()

    def warm_up(self) -> None:
        """Start the fork server and return at once, while it imports the libraries."""
        with self._guard:
            self._ensure_running()

    def start(self, program: Program) -> "ForkedProcess":
        """Ask the fork server to run a program in a fork, and return a handle of the process at once.

        The fork may not exist yet.
        """
        request = {
            "module": program.module,
            "arguments": program.arguments,
            "environment": dict(program.environment),
            "has_output": program.output is not None,
        }
        ours, theirs = socket.socketpair()
        with theirs, os.fdopen(os.memfd_create("request"), "wb") as file:  # a socket's buffer may be too small
            file.write(json.dumps(request).encode())
            file.flush()
            passed = [descriptor for descriptor in (program.output, program.descriptor) if descriptor is not None]
            try:
                with self._guard:
                    self._send_request(LASTING if program.lasting else BOUND, [theirs.fileno(), file.fileno(), *passed])
            except BaseException:
                ours.close()
                raise
        return ForkedProcess(ours)

    def close(self) -> None:
        """End the fork server and its programs, except lasting ones. A later `start` starts it again."""
        with self._guard:
            if self._control is not None:
                self._control.close()
                self._control = None
            if self._server is not None:
                self._server.wait()
                self._server = None

    def _send_request(self, message: bytes, descriptors: list[int]) -> None:
        """Send a request to the fork server. If that was killed, start a new one and send the request again."""
        try:
            socket.send_fds(self._ensure_running(), [message], descriptors)
        except OSError:
            log.warning("the fork server is gone; starting it again")
            if self._control is not None:
                self._control.close()
                self._control = None
            socket.send_fds(self._ensure_running(), [message], descriptors)

    def _ensure_running(self) -> socket.socket:
        if self._control is None:
            if self._server is not None:
                self._server.wait()
            # Packets keep requests apart, each with its own descriptors.
            ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            with theirs:
                self._server = subprocess.Popen(
                    [*PYTHON_MODULE, "lathe.service.processes.fork_server", str(theirs.fileno()), *self._preloaded],
                    stdin=subprocess.DEVNULL,
                    env=get_environment_without_keys() | SINGLE_THREADED,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is for the server
                )
            self._control = ours
        return self._control


class ForkedProcess:
    """A handle of a program that a fork server runs or will run.

    It has the methods of `subprocess.Popen` in `Process`. The program is observed by a socket, to which the fork server
    writes its exit status, and, once the fork server is gone, by a descriptor of the process.
    """

    def __init__(self, status: socket.socket) -> None:
        """Watch a fork through the socket on which the fork server writes its process id and exit status."""
        self._status = status
        _call_when_collected(self, status.close)
        self._guard = threading.Lock()
        self._pid: int | None = None
        self._process: int | None = None  # descriptor, which is readable once the process has ended
        self._orphaned = False
        self._returncode: int | None = None

    @property
    def pid(self) -> int:
        """Process id, or 0 if the fork failed. Reading it waits until the process is forked."""
        while self.poll() is None and self._pid is None:
            self._wait_for_message(None)
        return self._pid or 0

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs or is about to start, without waiting."""
        with self._guard:
            while self._returncode is None and select.select([self._observed], [], [], 0)[0]:
                if self._orphaned:
                    self._returncode = LOST  # only the parent learns the status
                else:
                    self._store_message(self._status.recv(NUMBER.size, socket.MSG_WAITALL))
            return self._returncode

    @property
    def _observed(self) -> socket.socket | int:
        """Socket or descriptor that becomes readable when the state of the process has changed."""
        return self._process if self._orphaned and self._process is not None else self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit status.

        Raises:
            subprocess.TimeoutExpired: after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise subprocess.TimeoutExpired(f"process {self._pid}", timeout or 0.0)
            self._wait_for_message(remaining)
        return status

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM), or cancel its fork if it is not forked yet."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process (SIGKILL), or cancel its fork if it is not forked yet."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, or cancel its fork if it is not forked yet. Do nothing after its end."""
        if self.poll() is None and self._pid is None:
            with suppress(OSError):
                self._status.shutdown(socket.SHUT_WR)  # the fork server then does not start the program
        elif self._process is not None and self._returncode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, number)
        elif self._process is None and self._pid and self._returncode in (None, LOST):
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _wait_for_message(self, seconds: float | None) -> None:
        """Wait, at most `seconds`, until the fork server has sent a message or the process has ended."""
        with suppress(ValueError, OSError):  # another thread has just closed the socket
            select.select([self._observed], [], [], seconds)

    def _store_message(self, message: bytes) -> None:
        """Store the fork server's message: first the process id, then the exit status, which closes the socket.

        The exit status is `LOST` if the fork failed, which is logged, or if the fork server is gone and the process
        has ended.
        """
        number = NUMBER.unpack(message)[0] if len(message) == NUMBER.size else None
        if self._pid is None and number is not None and number > 0:
            self._pid = number
            with suppress(OSError):  # it has ended, or the kernel is older than Linux 5.3
                self._process = os.pidfd_open(number)
                _call_when_collected(self, os.close, self._process)
            return
        # The socket ended without a status, so the fork server is gone; its child may still run.
        if number is None and self._process is not None:
            self._orphaned = True
            self._status.close()
            return
        if self._pid is None and number is not None:
            log.error("the system cannot start a process: %s", os.strerror(-number))
            number = None
        self._returncode = LOST if number is None else number
        self._status.close()


def _call_when_collected(process: ForkedProcess, close: Callable[..., None], *arguments: int) -> None:
    """Call `close` when the handle of a process is garbage-collected.

    In a cycle of garbage, a `__del__` may come after the warning of an unclosed socket.
    """
    weakref.finalize(process, close, *arguments).atexit = False


def create_process_starter(device: str | None) -> ProcessStarter:
    """Return a starter of processes: a fork server on Linux if encoders cannot use a GPU, else a `Spawner`.

    Args:
        device: torch device of the encoders; None selects the best available.
    """
    on_cpu = device == "cpu" or (device is None and not any(path.exists() for path in GPU_DEVICES))
    return ForkServer() if sys.platform == "linux" and on_cpu else Spawner()
