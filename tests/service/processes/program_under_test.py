"""A program that says what it was started with, then does what it is told through the descriptor it inherits."""

import json
import os
import resource
import signal
import socket
import sys


def main(arguments):
    print("written to its output", flush=True)
    connection = socket.socket(fileno=int(arguments[-1]))
    about = {
        "arguments": arguments[:-1],
        "environment": dict(os.environ),
        "pid": os.getpid(),
        "session": os.getsid(0),
        "input": sys.stdin.read(),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "mask": os.umask(0o77),
        "folder": os.getcwd(),
        "niceness": os.nice(0),
        "signals": [str(int(signal.getsignal(number))) for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)],
        "threads": len(os.listdir("/proc/self/task")),
    }
    connection.sendall(json.dumps(about).encode() + b"\n")
    match connection.recv(100):
        case b"raise":
            raise ValueError("as it was told")
        case b"":
            sys.exit(9)
        case status:
            sys.exit(int(status))


if __name__ == "__main__":
    main(sys.argv[1:])
