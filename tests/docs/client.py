"""What `lathe` and `python -m` are while a block runs: a request to the workshop.

    client.py lathe fit …        waits for the command and exits as it does
    client.py lathe serve …      comes back once the server has greeted, and leaves it running, as in another terminal

`DOCS_COMMANDS` is the workshop's socket, `DOCS_RUNNING` a folder with the log of each server, named by its process.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

STAYING = {"serve": "fit-transform", "worker": "taking jobs from"}
"""Commands that run until they are stopped, with a word of what they say when they are ready."""

READY_SECONDS = 90
CRASHED = 70
"""Exit status of a command that ended without one."""


def ask(words: list[str]) -> int:
    """Have the workshop run a command and return its exit status."""
    request = json.dumps({"words": words, "folder": str(Path.cwd()), "environment": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["DOCS_COMMANDS"])
        socket.send_fds(connection, [len(request).to_bytes(8)], [0, 1, 2])
        connection.sendall(request)
        answer = connection.recv(1)
    return answer[0] if answer else CRASHED


def leave_running(words: list[str]) -> int:
    """Start a server, wait until it is ready, and leave it running. Return 0, or what it ended with."""
    folder = Path(os.environ["DOCS_RUNNING"])
    log = folder / f"{time.monotonic_ns()}.log"
    with log.open("w") as file:
        command = [sys.executable, "-S", "-E", __file__, "--wait", *words]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    (folder / f"{process.pid}.pid").touch()
    deadline = time.monotonic() + READY_SECONDS
    while STAYING[words[1]] not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.stderr.write(log.read_text())
            return process.returncode or CRASHED
        time.sleep(0.05)
    return 0


def main(words: list[str]) -> int:
    """Run a command and return its exit status."""
    if words[0] == "--wait":
        return ask(words[1:])
    stays = len(words) > 1 and words[1] in STAYING and not {"--help", "--check", "--burst"} & set(words)
    return leave_running(words) if stays else ask(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
