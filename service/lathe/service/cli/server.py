"""The server that `lathe serve` runs: shutdown, connection limits, and the greeting once it is ready.

Number of threads that torch computes with, in the event loop's thread and in the others.
"""

import asyncio
import gc
import shlex
import signal
import socket
import sys
import threading
from functools import partial
from threading import Timer
from types import FrameType

import torch
import typer
import uvicorn

from lathe.service import logs
from lathe.service.app import create_app
from lathe.service.build_info import find_mixed_installation
from lathe.service.http.connection import Connection, ConnectionLimits, check_connections, get_descriptor_limit
from lathe.service.processes.program import ProcessStarter
from lathe.service.services import Services
from lathe.service.settings import Settings
from lathe.training.encoder.devices import keep_freed_blocks
from lathe.transforms.errors import ArtifactError

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


EXTRA_SHUTDOWN_SECONDS = 2
"""Seconds to send errors for requests that were not finished in time; then connections are closed."""


class Server(uvicorn.Server):
    """Server that ends event streams and late requests when it is asked to stop, and checks connection limits."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self.services = services

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown when a signal arrives.

        Event streams end now, and unfinished requests fail after `shutdown_seconds`.
        """
        if not self.services.closing.is_set():
            self.services.closing.set()
            deadline = Timer(self.services.settings.shutdown_seconds, self.services.embedder.fail_unfinished)
            deadline.daemon = True
            deadline.start()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Check the time limits of all connections once a second, and return whether the server should exit.

        uvicorn calls this ten times a second.
        """
        if counter % 10 == 0:
            check_connections(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)


def run_server(settings: Settings, processes: ProcessStarter, sockets: list[socket.socket]) -> None:
    """Set up this process and serve requests until a signal stops the server.

    First sets the process's memory allocator, torch threads, logging and signal handlers. Prints a greeting when ready.
    Exits with status 1 if the server cannot start, with 0 after a signal.

    Args:
        settings: settings of the server.
        processes: starts the processes of encoders and jobs.
        sockets: sockets bound to the server's addresses, not listening yet.

    Raises:
        ValueError: if others can write to the state folder, requests need an admin key and there is none, or the
            settings need a package that is not installed.
    """
    keep_freed_blocks()
    limit_this_thread_to_one_core(settings.threads)
    logs.configure(settings.log_level)
    app = create_app(settings, processes)
    gc.freeze()  # the modules' 230,000 objects, which each full collection would otherwise look at, for 0.1 s
    gc.enable()  # `serve` disables it for the imports

    limits = ConnectionLimits(settings.max_connections, settings.body_seconds, get_descriptor_limit())
    config = uvicorn.Config(
        app,
        http=partial(Connection, limits=limits),  # type: ignore[arg-type]  # called like the class
        ws="none",
        backlog=limits.backlog,
        log_config=None,
        timeout_keep_alive=settings.keep_alive_seconds,
        access_log=False,  # the service logs requests itself, without their paths
        timeout_graceful_shutdown=settings.shutdown_seconds + EXTRA_SHUTDOWN_SECONDS,
        server_header=False,
    )

    server = Server(config, app.state.services)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn shuts down in order, then raises them again
        signal.signal(number, lambda *_: sys.exit(0))
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # the terminal is closed; nohup has it ignored
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:  # uvloop, if it is installed
        runner.run(serve_and_greet(server, sockets, settings, app.state.services))
    if not server.started:
        sys.exit(1)


async def serve_and_greet(
    server: uvicorn.Server, sockets: list[socket.socket], settings: Settings, services: Services
) -> None:
    """Serve requests on the sockets, and print the greeting once all encoders have loaded or failed.

    Returns when the server stops.
    """
    greeting = asyncio.create_task(_greet(server, settings, services))
    try:
        await server.serve(sockets)
    finally:
        greeting.cancel()


async def _greet(server: uvicorn.Server, settings: Settings, services: Services) -> None:
    for engine in services.embedder.engines.values():
        await asyncio.to_thread(engine.settled.wait)
    for warning in await asyncio.to_thread(list_start_warnings, services):
        typer.echo(f"Warning: {warning}", err=True)
    while not server.started:
        await asyncio.sleep(0.02)
    typer.echo(_format_greeting(settings, services, _find_bound_port(server) or settings.port), err=True)


def list_start_warnings(services: Services) -> list[str]:
    """Return sentences to show at the start.

    They are the warnings of `/health`, a mixed installation, a state folder that cannot be written, missing API keys,
    and live chains that cannot be read.
    """
    warnings = services.list_warnings()
    if (mixture := find_mixed_installation()) is not None:
        warnings.append(mixture)
    if services.home_problem:
        warnings.append("fits and administration are off, because the state folder cannot be written")
    if services.settings.admin_key_only:
        warnings.append(services.settings.describe_access())
    for name in services.registry.names():
        version = services.registry.live(name)
        if version is not None:
            problem = services.registry.describe_version(name, version).get("error")
            warnings += [f"the chain {name} cannot be used: {problem}"] if problem else []
    return warnings


def _format_greeting(settings: Settings, services: Services, port: int) -> str:
    """Return the text printed at the start: URL, encoders, chains, admin key, and example requests for curl.

    Keys that only the user knows are the placeholders `API_KEY` and `ADMIN_KEY`.
    """
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    key_file = shlex.quote(str(services.home.admin_key))
    if settings.admin_keys or not services.home.admin_key.is_file():
        admin, key = "Administration needs a key of LATHE_ADMIN_KEYS.", "ADMIN_KEY"
    else:
        admin, key = f"The admin key is in {key_file}.", f"$(cat {key_file})"
    use_key = key if settings.admin_key_only else "API_KEY"
    return GREETING.format(
        url=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
        admin=admin,
        key=key,
        use=f' -H "authorization: Bearer {use_key}"' if settings.needs_key else "",
        size=_format_example_dimensions(services),
        encoders=", ".join(services.embedder.engines),
        chains=", ".join(services.registry.names()) or "none",
        fit='{"name": "mine", "steps": [{"kind": "r2"}, {"kind": "geopres", "dimensions": 96}],',
    )


def _format_example_dimensions(services: Services) -> str:
    """Return a JSON field such as `, "dimensions": 128` for the example requests, or "" if no chain serves any."""
    info = services.embedder.default.info
    try:
        size_routes = services.registry.size_routes.get_current().get(info.fingerprint, {}) if info else {}
    except ArtifactError:  # a warning before the greeting says that they are damaged
        return ""
    return next((f', "dimensions": {size}' for size in size_routes if size.isdecimal()), "")


def _find_bound_port(server: uvicorn.Server) -> int | None:
    """Return the port that the server listens on, which the system selects for port 0, or None if it has no socket."""
    sockets = [socket for bound in server.servers for socket in bound.sockets]
    return int(sockets[0].getsockname()[1]) if sockets else None


def limit_this_thread_to_one_core(threads_elsewhere: int) -> None:
    """Make torch use one core in the calling thread, and `threads_elsewhere` cores in threads that start later.

    For the thread of an event loop, which maps only a few rows at a time: a second core joins later than they take, and
    then waits for more work at full speed, which cost half a millisecond of it for each request.

    Args:
        threads_elsewhere: number of threads that torch uses in other threads.
    """
    torch.set_num_threads(1)
    torch.get_num_threads()  # from here on, this thread keeps its number whatever others set
    setter = threading.Thread(target=torch.set_num_threads, args=(threads_elsewhere,))  # sets it for new threads too
    setter.start()
    setter.join()
