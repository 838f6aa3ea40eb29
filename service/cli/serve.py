"""`lathe serve`."""

import os
from contextlib import suppress
from typing import Annotated

from service.cli.options import flag


def serve(
    host: Annotated[str, flag("--host", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, flag("--port", "Port to listen on; 0 takes a free one.")] = 8080,
) -> None:
    """Serve embeddings over HTTP."""
    from service.processes.client import process_starter

    raise_file_limit()
    processes = process_starter(os.environ.get("LATHE_DEVICE") or None)
    processes.warm_up()  # before this process imports torch, so that both do so at once

    from service.cli.server import run_server
    from service.settings import read_settings

    run_server(read_settings(host=host, port=port), processes)


def raise_file_limit() -> None:
    """Take as many open files as the system allows: each index holds a dozen."""
    with suppress(ImportError, OSError, ValueError):  # not on Windows; not past what a container was given
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
