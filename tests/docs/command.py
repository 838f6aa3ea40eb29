"""One command of a block, in a process that the workshop forks for it.

A client (`client.py`) sends its words, folder, environment and standard files through a connection that this process
inherits, and gets the exit status. A command whose client is gone is told to end.
"""

import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from importlib import import_module
from types import ModuleType

LAST_SECONDS = 10


def main(arguments: list[str]) -> None:
    """Become the command that a client wants. This function never returns.

    Args:
        arguments: the number of the connection's descriptor.
    """
    connection = socket.socket(fileno=int(arguments[0]))
    length, files, *_ = socket.recv_fds(connection, 8, 3)
    request = json.loads(connection.recv(int.from_bytes(length), socket.MSG_WAITALL))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    threading.Thread(target=end_with, args=(connection,), daemon=True).start()
    sys.modules["__main__"] = ModuleType("__main__")  # else usage would name the module of the fork server
    status = run(request["words"])
    with suppress(OSError):  # the client is gone
        connection.sendall(bytes([status & 255]))
    os._exit(0)  # what runs at exit takes time, and nobody waits for it


def end_with(connection: socket.socket) -> None:
    """End in order when the client is gone, and in any case some seconds later."""
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_SECONDS)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def run(words: list[str]) -> int:
    """Run `lathe …`, or `python -m …`, and return the exit status."""
    try:
        if words[0] == "lathe":
            sys.argv = words
            import_module("lathe.service.cli.main").main()
        else:
            sys.argv = words[2:]
            runpy.run_module(words[2], run_name="__main__", alter_sys=True)
        return 0
    except SystemExit as ending:
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
