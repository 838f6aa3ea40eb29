"""`lathe serve`."""

import os
import socket
from contextlib import suppress
from typing import Annotated

from service.cli.options import flag


def serve(
    host: Annotated[str, flag("--host", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, flag("--port", "Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8080,
) -> None:
    """Serve embeddings over HTTP."""
    from service.processes.client import process_starter

    raise_file_limit()
    sockets = bind(host, port)  # first of all: nobody should wait for torch to hear that the port is in use
    processes = process_starter(os.environ.get("LATHE_DEVICE") or None)
    processes.warm_up()  # before this process imports torch, so that both do so at once

    from service.cli.server import run_server
    from service.settings import read_settings

    run_server(read_settings(host=host, port=port), processes, sockets)


def bind(host: str, port: int) -> list[socket.socket]:
    """Return a socket bound to each address of a host; none listens yet, so clients are refused until it serves.

    Raises:
        OSError: if the host has no address or the port is in use.
    """
    sockets = []
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, *_, address in dict.fromkeys(found):
        bound = socket.socket(family, socket.SOCK_STREAM)
        sockets.append(bound)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a restart old connections linger
        if family == socket.AF_INET6:  # the IPv4 address of the same port is bound beside it
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address[:2])
    return sockets


def raise_file_limit() -> None:
    """Take as many open files as the system allows: each index holds a dozen."""
    with suppress(ImportError, OSError, ValueError):  # not on Windows; not past what a container was given
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
