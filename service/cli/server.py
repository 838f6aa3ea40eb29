"""The server that `lathe serve` runs: how it ends, where it listens, what it says once it is ready."""

import asyncio
import shlex
import signal
import socket
import sys
from functools import partial
from threading import Timer
from types import FrameType

import torch
import typer
import uvicorn

from service import logs
from service.app import create_app
from service.http.connection import Connection, Limits, check_connections, descriptor_limit
from service.memory import keep_freed_blocks
from service.processes.program import ProcessStarter
from service.services import Services
from service.settings import Settings

GREETING = """
Lathe serves at {url}   (encoders: {encoders}; chains: {chains})
{admin} Stop with Ctrl-C. Try:

  curl {url}/embed -H 'content-type: application/json'{use} \\
    -d '{{"inputs": "What is a lathe?"{size}}}'

  curl {url}/v1/embeddings -H 'content-type: application/json'{use} \\
    -d '{{"input": "What is a lathe?"{size}}}'

  curl {url}/fit-transform -H 'content-type: application/json' \\
    -H "authorization: Bearer {key}" \\
    -d '{fit} "source": {{"path": "pydoc:"}}}}'
"""


LAST_WORDS_SECONDS = 2
"""For the errors that answer what was not finished in time; connections are cut after that."""


class Server(uvicorn.Server):
    """Lets answers without an end know that the server was asked to stop, and ends the others in time."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self.services = services

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        if not self.services.closing.is_set():
            self.services.closing.set()
            deadline = Timer(self.services.settings.shutdown_seconds, self.services.embedder.give_up)
            deadline.daemon = True
            deadline.start()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Look after the connections once a second; called ten times."""
        if counter % 10 == 0:
            check_connections(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)


def run_server(settings: Settings, processes: ProcessStarter, sockets: list[socket.socket]) -> None:
    """Serve until told to stop.

    Args:
        settings: of the server.
        processes: starts the processes of encoders and jobs.
        sockets: bound to the server's addresses, not listening yet.

    Raises:
        ValueError: for settings that make no sense together.
    """
    keep_freed_blocks()
    torch.set_num_threads(settings.threads)
    logs.configure(settings.log_level)
    app = create_app(settings, processes)
    limits = Limits(settings.max_connections, settings.body_seconds, descriptor_limit())
    config = uvicorn.Config(
        app,
        http=partial(Connection, limits=limits),  # type: ignore[arg-type]  # called like the class
        ws="none",
        backlog=limits.backlog,
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


async def run(server: uvicorn.Server, sockets: list[socket.socket], settings: Settings, services: Services) -> None:
    """Serve, and greet once everything is warm."""
    greeting = asyncio.create_task(greet(server, settings, services))
    try:
        await server.serve(sockets)
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
    say(greeting_text(settings, services, bound_port(server) or settings.port))


def greeting_text(settings: Settings, services: Services, port: int) -> str:
    """Where the service is, and three requests that work as they stand (with the keys that are set)."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    key_file = shlex.quote(str(services.home.admin_key))
    if settings.admin_keys or services.home_problem:
        admin, key = "Administration takes a key of LATHE_ADMIN_KEYS.", "ADMIN_KEY"
    else:
        admin, key = f"The admin key is in {key_file}.", f"$(cat {key_file})"
    return GREETING.format(
        url=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
        admin=admin,
        key=key,
        use=" -H 'authorization: Bearer API_KEY'" if settings.api_keys else "",
        size=shown_size(services),
        encoders=", ".join(services.embedder.engines),
        chains=", ".join(services.registry.names()) or "none",
        fit='{"name": "mine", "steps": [{"kind": "r2"}, {"kind": "geopres", "dimensions": 96}],',
    )


def shown_size(services: Services) -> str:
    """A size the default encoder answers, as the examples ask for it; nothing where it has no chain."""
    info = services.embedder.default.info
    places = services.places.current().get(info.fingerprint, {}) if info else {}
    return next((f', "dimensions": {size}' for size in places if size.isdecimal()), "")


def say(text: str) -> None:
    """To the terminal, not into a pipe."""
    typer.echo(text, err=True)


def bound_port(server: uvicorn.Server) -> int | None:
    """The port the system gave, where any would do."""
    sockets = [socket for bound in server.servers for socket in bound.sockets]
    return int(sockets[0].getsockname()[1]) if sockets else None
