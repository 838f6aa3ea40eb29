"""A program to run in a process of its own, and the plain way to start it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from service.key_file import KEY_VARIABLES


@dataclass(frozen=True)
class Program:
    """What a new process runs: `main(arguments)` of a module.

    Attributes:
        module: has a `main(arguments: list[str])`, and calls it with `sys.argv[1:]` when run by `python -m`.
        arguments: its command line.
        environment: all of its environment variables.
        descriptor: an open file descriptor that it inherits, whose number becomes the last argument; None for none.
        output: a file descriptor for what it prints; None for the server's own.
        lasting: whether it goes on when the server is gone.
    """

    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    descriptor: int | None = None
    output: int | None = None
    lasting: bool = False


class Process(Protocol):
    """A started process; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int:
        """Its id."""

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit status.

        Raises:
            subprocess.TimeoutExpired: after so many seconds.
        """

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""

    def kill(self) -> None:
        """End it at once (SIGKILL)."""


class ProcessStarter(Protocol):
    """A way to start programs, safe to use from several threads."""

    def warm_up(self) -> None:
        """Begin with what takes time before the first start; return at once."""

    def start(self, program: Program) -> Process:
        """Start a program.

        Raises:
            OSError: if the system starts no more processes.
        """

    def close(self) -> None:
        """Release what starting takes; processes that are lasting go on."""


class Spawner:
    """Starts each program in a new Python, which takes seconds to import torch.

    The choice where CUDA may be used: a process forked from one that has touched CUDA cannot use it.
    """

    def warm_up(self) -> None:
        """Do nothing: every program has a Python of its own."""

    def start(self, program: Program) -> Process:
        """Start a program; see `ProcessStarter`."""
        passed = [] if program.descriptor is None else [program.descriptor]
        return subprocess.Popen(
            [sys.executable, "-m", program.module, *program.arguments, *map(str, passed)],
            stdin=subprocess.DEVNULL,
            stdout=program.output,
            stderr=None if program.output is None else subprocess.STDOUT,
            env=dict(program.environment),
            pass_fds=passed,
            start_new_session=True,  # Ctrl-C on the server is for the server, which ends the others in order
        )

    def close(self) -> None:
        """Do nothing, as `warm_up`."""


def environment_without_keys() -> dict[str, str]:
    """Return this process's environment variables except those that hold keys or name files with keys."""
    return {name: value for name, value in os.environ.items() if name not in KEY_VARIABLES}
