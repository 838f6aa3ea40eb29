"""A program to run in a process of its own, and `Spawner`, which starts it in a new Python."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lathe.service.key_file import KEY_VARIABLES

PYTHON_MODULE = (sys.executable, "-P", "-m")
"""Beginning of the command that runs a module in a new Python. With -P the working directory is not searched: a file of
the user's there may have the name of any module."""


@dataclass(frozen=True)
class Program:
    """A program that a new process runs: `main(arguments)` of a module.

    Attributes:
        module: module with `main(arguments: list[str])`, which it also calls with `sys.argv[1:]` under `python -m`.
        arguments: command line.
        environment: all environment variables of the process.
        descriptor: open file descriptor to inherit, whose number is appended to the arguments; None for none.
        output: file descriptor for stdout and stderr; None for the server's.
        lasting: whether the process goes on when the server ends.
    """

    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    descriptor: int | None = None
    output: int | None = None
    lasting: bool = False


class Process(Protocol):
    """A started process, with the methods of `subprocess.Popen` that are used."""

    @property
    def pid(self) -> int:
        """Process id."""

    def poll(self) -> int | None:
        """Return the exit status, negative for the number of a signal, or None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit status.

        Raises:
            subprocess.TimeoutExpired: after `timeout` seconds.
        """

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM)."""

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""


class ProcessStarter(Protocol):
    """A way to start programs, usable from several threads."""

    def warm_up(self) -> None:
        """Begin slow preparations for the first start, and return at once."""

    def start(self, program: Program) -> Process:
        """Start a program and return its process.

        Raises:
            OSError: if the system starts no more processes.
        """

    def close(self) -> None:
        """Release resources. Processes that are not lasting may be ended. Lasting ones go on."""


class Spawner:
    """Starter of each program in a new Python, which takes seconds to import torch.

    Used where CUDA may be: a process forked from one that has used CUDA cannot use it.
    """

    def warm_up(self) -> None:
        """Do nothing: there is nothing to prepare for a new Python."""

    def start(self, program: Program) -> Process:
        """Start a program as `python -P -m MODULE` in a session of its own, and return the process.

        See `ProcessStarter`.
        """
        passed = [] if program.descriptor is None else [program.descriptor]
        return subprocess.Popen(
            [*PYTHON_MODULE, program.module, *program.arguments, *map(str, passed)],
            stdin=subprocess.DEVNULL,
            stdout=program.output,
            stderr=None if program.output is None else subprocess.STDOUT,
            env=dict(program.environment),
            pass_fds=passed,
            start_new_session=True,  # Ctrl-C on the server is for the server, which ends the others in order
        )

    def close(self) -> None:
        """Do nothing: started processes go on."""


def get_environment_without_keys() -> dict[str, str]:
    """Return this process's environment variables except those that hold keys or name files with keys."""
    return {name: value for name, value in os.environ.items() if name not in KEY_VARIABLES}
