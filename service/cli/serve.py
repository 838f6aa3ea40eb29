"""`lathe serve`."""

import signal
import sys
from typing import Annotated

from service.cli.options import flag


def serve(
    host: Annotated[str, flag("--host", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, flag("--port", "Port to listen on; 0 takes a free one.")] = 8080,
) -> None:
    """Serve embeddings over HTTP."""
    import asyncio

    import torch
    import uvicorn

    from service import logs
    from service.app import create_app
    from service.cli.server import LAST_WORDS_SECONDS, Server, listen, raise_file_limit, run
    from service.memory import keep_freed_blocks
    from service.settings import read_settings

    raise_file_limit()
    keep_freed_blocks()
    settings = read_settings(host=host, port=port)
    torch.set_num_threads(settings.threads)
    logs.configure(settings.log_level)
    app = create_app(settings)
    sockets = listen(settings.host, settings.port)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,  # the service logs requests itself, without their paths
        timeout_graceful_shutdown=settings.shutdown_seconds + LAST_WORDS_SECONDS,
        server_header=False,
    )
    server = Server(config, app.state.services)
    for wanted in (signal.SIGINT, signal.SIGTERM):  # uvicorn shuts down in order, then raises them again
        signal.signal(wanted, lambda *_: sys.exit(0))
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:  # uvloop, where it is installed
        runner.run(run(server, sockets, settings, app.state.services))
    if not server.started:
        sys.exit(1)
