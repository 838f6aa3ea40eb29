"""Programs under test, started by a fork server or as new Pythons."""

import json
import os
import socket
from contextlib import contextmanager
from pathlib import Path

from lathe.service.processes.program import Program

MODULE = "tests.service.processes.program_under_test"
SECONDS = 60.0
ROOT = Path(__file__).resolve().parents[3]


class Started:
    """A program under test and the socket to it."""

    def __init__(self, starter, *arguments, output=None, lasting=False, **environment):
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(SECONDS)
        needed = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "PYTHONPATH": str(ROOT)}
        with theirs:
            program = Program(MODULE, arguments, needed | environment, theirs.fileno(), output, lasting)
            self.process = starter.start(program)

    def about(self):
        """Return what the child says of itself."""
        with self.socket.makefile() as lines:
            return json.loads(lines.readline())

    def end(self, word="0"):
        self.socket.sendall(word.encode())
        return self.process.wait(SECONDS)


@contextmanager
def closing(starter):
    """Close a starter at the end of a block."""
    try:
        yield starter
    finally:
        starter.close()
