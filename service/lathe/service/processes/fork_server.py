"""The fork server, from which processes are forked: `python -m lathe.service.processes.fork_server FD MODULE …`.

It imports the modules in order and answers requests in between, so that an encoder need not wait for what only jobs
use. A request comes with a file that describes the program, descriptors to inherit, and a socket, to which the server
writes the fork's process id and, when the fork has ended, its exit status.

A fork copies only the thread that forks, so this process has one: `SINGLE_THREADED` stops the libraries that start
threads on import from doing so, and each program sets its own number of compute threads.
"""

import errno
import fcntl
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from setproctitle import setproctitle

PRELOADED = (
    "lathe.service.encoders.engine.worker",
    "sentence_transformers",
    "transformers.models.bert.modeling_bert",  # of the default encoder; other models are imported by their processes
    "lathe.service.jobs.process",
    "lathe.service.publishing.fits",
)
"""Modules that encoders and jobs import, the most urgent first."""

SINGLE_THREADED = {
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's and SciPy's BLAS
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # the allocator of pyarrow, which sentence-transformers imports
}
"""Environment variables that stop libraries from starting threads on import."""

QUIET_SECONDS = 1.0
"""Seconds without a request after which the next module is imported, once there are forks. They load models meanwhile,
and on two cores the import would take one from them."""

NUMBER = struct.Struct("i")
"""Format of process ids and exit statuses on a request's socket; a negative id is the error number of a failed fork."""

MAX_DESCRIPTORS = 4
"""Maximum number of file descriptors that come with a request."""
LASTING, BOUND = b"lasting", b"bound"
"""A request's message: whether the fork goes on when the server ends, or is killed."""


class _ForkLoop:
    """A loop that forks on request, until the other side of its socket is closed.

    It sets the process's handlers of SIGCHLD, to notice that a fork has ended, and of SIGIO, to end at once when the
    server is gone, even in the middle of an import.
    """

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.statuses: dict[int, socket.socket] = {}
        self.bound: set[int] = set()
        self.wakeup, self.woken = socket.socketpair()
        self.wakeup.setblocking(False)
        self.woken.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # an ignored signal would not write to the wakeup descriptor
        signal.set_wakeup_fd(self.wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGIO, lambda *_: self._exit_if_server_is_gone())
        fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(control, fcntl.F_SETFL, fcntl.fcntl(control, fcntl.F_GETFL) | os.O_ASYNC)

    def serve(self, preloaded: Sequence[str]) -> Callable[[], None]:
        """Import the modules, then fork on each request. Only forks return: a function that runs the fork's program."""
        self._exit_if_server_is_gone()  # it may be gone already
        gc.disable()  # imports make so many objects that collecting takes a quarter of their time
        setproctitle(f"{sys.executable} -P -m lathe.service.processes.fork_server")  # `ps` need not list the modules
        for name in preloaded:
            with suppress(ImportError):  # the program that needs the module says so in its own output
                import_module(name)
            while self._wait_for_request(QUIET_SECONDS if self.statuses else 0):
                if program := self._fork_for_request():
                    return program
        while True:
            self._wait_for_request(None)
            if program := self._fork_for_request():
                return program

    def _wait_for_request(self, seconds: float | None) -> bool:
        """Wait up to `seconds` for a request, and return whether one came. None waits without a limit.

        The exit statuses of ended forks are reported meanwhile.
        """
        while True:
            ready = select.select([self.control, self.woken], [], [], seconds)[0]
            if self.woken in ready:
                self.woken.recv(4096)
                self._report_ended_forks()
            if self.control in ready:
                return True
            if not ready:
                return False

    def _fork_for_request(self) -> Callable[[], None] | None:
        """Fork for one request. Return None in the server, and in the fork a function that runs its program.

        The process id is reported to the requester. If the requester has cancelled, or the system refuses, the negative
        error number is reported and nothing forked. If the server is gone, this process exits.
        """
        message, descriptors, *_ = socket.recv_fds(self.control, len(LASTING), MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not message:
            self._exit_if_server_is_gone()

        status = socket.socket(fileno=descriptors[0])
        gc.freeze()  # a collection in the fork would write to pages that forks share
        child = -errno.ECANCELED if _is_closed(status) else _try_to_fork()
        if child == 0:
            status.close()
            return self._set_up_fork(*descriptors[1:])

        for descriptor in descriptors[1:]:
            os.close(descriptor)
        with suppress(OSError):  # the requester has closed the socket
            status.sendall(NUMBER.pack(child))
        if child < 0:
            status.close()
            return None
        self.statuses[child] = status
        if message == BOUND:
            self.bound.add(child)
        return None

    def _set_up_fork(self, request_file: int, *inherited: int) -> Callable[[], None]:
        """Set up this fork's descriptors, environment and arguments, and return a function that runs its program.

        The fork also gets a title, a session of its own and the default handlers of signals.

        Args:
            request_file: descriptor of the JSON that describes the program.
            inherited: descriptors of the program: that of its output, if it has one, then those it gets as arguments.
        """
        gc.enable()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGIO):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()  # Ctrl-C on the server is for the server, which ends the others in order
        for server_socket in (self.control, self.wakeup, self.woken, *self.statuses.values()):
            server_socket.close()

        with os.fdopen(request_file, "rb") as file:
            file.seek(0)
            request: dict[str, Any] = json.load(file)
        descriptors = list(inherited)
        if request["has_output"]:
            output = descriptors.pop(0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)

        # A fork has the fork server's variables, a new process would have only the program's.
        os.environ.clear()
        os.environ.update(request["environment"])
        arguments = [*request["arguments"], *map(str, descriptors)]
        sys.argv = [request["module"], *arguments]
        setproctitle(f"{sys.executable} -P -m {' '.join(sys.argv)}")  # what a new Python's would be
        return lambda: import_module(request["module"]).main(arguments)

    def _report_ended_forks(self) -> None:
        """Send the exit status of each fork that has ended to the socket of the process that requested it."""
        while self.statuses:
            child, ending = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            self.bound.discard(child)
            with self.statuses.pop(child) as status, suppress(OSError):
                status.sendall(NUMBER.pack(os.waitstatus_to_exitcode(ending)))

    def _exit_if_server_is_gone(self) -> None:
        """If the server's socket is closed, kill the forks that are not lasting, and exit. Also called on SIGIO."""
        if _is_closed(self.control):
            for child in self.bound:
                os.kill(child, signal.SIGKILL)  # they are children of this process, so the number is still theirs
            os._exit(0)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _try_to_fork() -> int:
    """Fork this process. Return the process id, 0 in the fork, or a negative error number if the system refuses."""
    try:
        return os.fork()
    except OSError as error:
        return -(error.errno or errno.EAGAIN)


def main(arguments: list[str]) -> None:
    """Serve fork requests on the socket whose descriptor is the first argument. The others are modules to import.

    A fork returns from the loop, and runs its program here.
    """
    run_program = _ForkLoop(socket.socket(fileno=int(arguments[0]))).serve(arguments[1:])
    run_program()


if __name__ == "__main__":
    main(sys.argv[1:])
