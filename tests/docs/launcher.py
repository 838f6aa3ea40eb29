"""Runs Lathe's commands in forks of one process that has imported the libraries: a start takes no seconds then.

    python launcher.py SOCKET

A client (`client.py`) sends its words, folder, environment and standard files through the socket, and gets the exit
status. A command whose client is gone is told to end. The launcher itself ends with its standard input.
"""

import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path

PRELOADED = ("sentence_transformers", "service.app", "service.cli.main", "training.fitting", "uvicorn")
LAST_SECONDS = 10


def main(path: str) -> None:
    """Listen until the standard input ends."""
    sys.path[0] = str(Path(__file__).resolve().parents[2])  # for `python -m benchmarks…`, in place of this folder
    for name in PRELOADED:
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                carry_out(connection)
            connection.close()


def carry_out(connection: socket.socket) -> None:
    """Become the command that a client wants; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    length, files, *_ = socket.recv_fds(connection, 8, 3)
    request = json.loads(connection.recv(int.from_bytes(length), socket.MSG_WAITALL))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    threading.Thread(target=end_with, args=(connection,), daemon=True).start()
    status = run(request["words"])
    with suppress(OSError):  # nobody asks any more
        connection.sendall(bytes([status & 255]))
    os._exit(0)


def end_with(connection: socket.socket) -> None:
    """End in order when the client is gone, and in any case after some seconds."""
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LAST_SECONDS)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def run(words: list[str]) -> int:
    """Run `lathe …`, or `python -m …`; the exit status."""
    try:
        if words[0] == "lathe":
            sys.argv = words
            import_module("service.cli.main").main()
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


if __name__ == "__main__":
    main(sys.argv[1])
