"""`lathe serve`."""

import os
import socket
from contextlib import suppress
from typing import Annotated

from lathe.service.cli.options import flag


def serve(
    host: Annotated[str, flag("--host", "Address to listen on.", envvar="LATHE_HOST")] = "127.0.0.1",
    port: Annotated[
        int, flag("--port", "Port to listen on; 0 takes a free one.", envvar="LATHE_PORT", min=0, max=65535)
    ] = 8080,
) -> None:
    """Serve embeddings over HTTP."""
    from lathe.service.processes.client import create_process_starter

    _raise_file_limit()
    sockets = bind(host, port)  # before torch is imported, so that a port in use is reported at once
    processes = create_process_starter(os.environ.get("LATHE_DEVICE") or None)
    processes.warm_up()  # before this process imports torch, so that both import it at the same time

    from lathe.service.cli.server import run_server
    from lathe.service.settings import read_settings

    run_server(read_settings(host=host, port=port), processes, sockets)


def bind(host: str, port: int) -> list[socket.socket]:
    """Return a socket bound to each address of a host; none listens yet, so that clients are refused until then.

    Raises:
        OSError: if the host has no address or the port is in use.
    """
    sockets = []
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, *_, address in dict.fromkeys(addresses):
        bound = socket.socket(family, socket.SOCK_STREAM)
        sockets.append(bound)
        bound.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # connections from before a restart still hold the address
        if family == socket.AF_INET6:  # the IPv4 address of the same port is bound beside it
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address[:2])
    return sockets


def _raise_file_limit() -> None:
    """Raise this process's limit of open files to the system's maximum: each index holds a dozen."""
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limit; a container may forbid it
        import resource

        _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
