"""`lathe serve`."""

import asyncio
import signal
import sys
from typing import Annotated

import typer
import uvicorn

from service.app import create_app
from service.cli.options import flag
from service.services import Services
from service.settings import Settings, read_settings

GREETING = """
Lathe serves at {url}   (encoders: {encoders}; chains: {chains})
The admin key is in {key_file}. Stop with Ctrl-C. Try:

  curl {url}/embed -H 'content-type: application/json' \\
    -d '{{"inputs": "What is a lathe?", "dimensions": 128}}'

  curl {url}/v1/embeddings -H 'content-type: application/json' \\
    -d '{{"input": "What is a lathe?", "dimensions": 32}}'

  curl {url}/fit-transform -H 'content-type: application/json' \\
    -H "authorization: Bearer $(cat {key_file})" \\
    -d '{fit} "source": {{"path": "pydoc:"}}}}'
"""


def serve(
    host: Annotated[str, flag("--host", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, flag("--port", "Port to listen on; 0 takes a free one.")] = 8080,
) -> None:
    """Serve embeddings over HTTP."""
    import torch

    settings = read_settings(host=host, port=port)
    torch.set_num_threads(settings.threads)
    app = create_app(settings)
    config = uvicorn.Config(
        app, settings.host, settings.port, log_level="warning", timeout_graceful_shutdown=30, server_header=False
    )
    server = uvicorn.Server(config)
    for wanted in (signal.SIGINT, signal.SIGTERM):  # uvicorn shuts down in order, then raises them again
        signal.signal(wanted, lambda *_: sys.exit(0))
    asyncio.run(run(server, settings, app.state.services))
    if not server.started:
        sys.exit(1)


async def run(server: uvicorn.Server, settings: Settings, services: Services) -> None:
    """Serve, and greet once everything is warm."""
    greeting = asyncio.create_task(greet(server, settings, services))
    try:
        await server.serve()
    finally:
        greeting.cancel()


async def greet(server: uvicorn.Server, settings: Settings, services: Services) -> None:
    """Say where the service is and what to try, once it is ready."""
    if services.home_problem:
        say(f"Warning: {services.home_problem}. Serving goes on; fits and administration are off.")
    for engine in services.embedder.engines.values():
        await asyncio.to_thread(engine.settled.wait)
        if engine.problem:
            say(f"Warning: {engine.problem}")
    while not server.started:
        await asyncio.sleep(0.02)
    url = f"http://{settings.host}:{bound_port(server) or settings.port}"
    say(
        GREETING.format(
            url=url,
            key_file=services.home.admin_key,
            encoders=", ".join(services.embedder.engines),
            chains=", ".join(services.registry.names()) or "none",
            fit='{"name": "mine", "steps": [{"kind": "r2"}, {"kind": "geopres", "dimensions": 96}],',
        )
    )


def say(text: str) -> None:
    """To the terminal, not into a pipe."""
    typer.echo(text, err=True)


def bound_port(server: uvicorn.Server) -> int | None:
    """The port the system gave, where any would do."""
    sockets = [socket for bound in server.servers for socket in bound.sockets]
    return int(sockets[0].getsockname()[1]) if sockets else None
