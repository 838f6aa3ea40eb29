"""`lathe serve`: the HTTP server.

`lathe worker`: running of jobs that replicas queue in Redis.
"""

import errno
import gc
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from lathe.service.cli.options import flag, load_state

if TYPE_CHECKING:
    from lathe.service.jobs.job import WorkerClass


FIRST_UNPRIVILEGED_PORT = 1024
"""Smallest port that a program may listen on without an administrator's rights."""


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
    gc.disable()  # until `run_server` has built the app: a sixth of the imports' time goes into collections

    from lathe.service.cli.server import run_server
    from lathe.service.settings import read_settings

    settings = read_settings(host=host, port=port)
    with _explain_bind_errors(host, port):  # two servers can bind the same port before one of them listens
        run_server(settings, processes, sockets)


def bind(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to each address of a host at this port, which do not listen yet.

    Clients are refused until they listen. The host `::` stands for all addresses, also of IPv4. Port 0 is one
    free port, the same for each address.

    Raises:
        ValueError: if the host has no address, an address is not one of this machine, or the port is in use or
            reserved for administrators.
        OSError: if the system refuses for another reason.
    """
    try:
        addresses = socket.getaddrinfo(
            None if host == "::" else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise ValueError(f"LATHE_HOST is {host!r}, which has no address: {error.strerror}") from None

    sockets: list[socket.socket] = []
    with ExitStack() as opened, _explain_bind_errors(host, port):
        for family, *_, address in dict.fromkeys(addresses):
            bound = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sockets.append(bound)
            # Connections from before a restart still hold the address.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # the IPv4 address of the same port is bound beside it
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen_port = sockets[0].getsockname()[1] or port
            bound.bind((address[0], chosen_port, *address[2:]))
        opened.pop_all()
    return sockets


@contextmanager
def _explain_bind_errors(host: str, port: int) -> Iterator[None]:
    """Convert the system's error for an address that cannot be bound to a `ValueError` that says what to do.

    Other errors are not changed.
    """
    try:
        yield
    except OSError as error:
        explanations = {
            errno.EADDRINUSE: f"port {port} is in use on {host}: stop the program that listens there, "
            "or choose another port with --port or LATHE_PORT; 0 takes a free one",
            errno.EADDRNOTAVAIL: f"{host} is not an address of this machine: give one with --host or LATHE_HOST, "
            "such as 127.0.0.1 for this machine alone, or 0.0.0.0 for all its IPv4 addresses",
        }
        if 0 < port < FIRST_UNPRIVILEGED_PORT:
            explanations[errno.EACCES] = (
                f"port {port} is reserved for administrators: choose one from {FIRST_UNPRIVILEGED_PORT} on "
                "with --port or LATHE_PORT"
            )
        if error.errno not in explanations:
            raise
        raise ValueError(explanations[error.errno]) from None


def _raise_file_limit() -> None:
    """Raise this process's limit of open files to the system's maximum, because each index holds nine."""
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limit; a container may forbid it
        import resource

        _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


def worker(
    burst: Annotated[bool, flag("--burst", "End when no job is queued.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Run no job; exit with 1 if no worker of this machine is alive.")
    ] = False,
    training: Annotated[
        bool, flag("--training", "Run trainings and adaptations of encoders instead, which other workers do not take.")
    ] = False,
) -> None:
    """Run the jobs that replicas queue in Redis: fits and advice, or with --training what trains encoders.

    Any number of workers may run, on any machine that reaches LATHE_REDIS_URL; each runs one job at a time. A job whose
    worker is lost is run once more by another. Ctrl-C ends the worker after the current job, a second Ctrl-C at once.
    A training does not keep it: it is queued again, and continues from its last checkpoint on a worker with this
    LATHE_HOME, and from the beginning on another.

    Besides LATHE_REDIS_URL it reads LATHE_HOME (folder for its work, and its local replica of the chains),
    LATHE_DATA_ROOT (folder of the files that fits may name; unset: none), LATHE_JOB_THREADS (default: all cores),
    LATHE_DEVICE (cpu, cuda, …) and LATHE_LOG_LEVEL. The job names the encoder; its model is looked up in HF_HOME, and
    runs code of its own only if LATHE_ENCODERS names it.
    """
    settings, _ = load_state()
    settings.require_redis_extra()
    worker_class: WorkerClass = "trainings" if training else "jobs"
    if check:
        from lathe.service.jobs.redis_queue import check_live_worker

        typer.echo(check_live_worker(settings, worker_class))
        return
    from lathe.service import logs
    from lathe.service.jobs.runner import run_worker

    logs.configure(settings.log_level)
    run_worker(settings, worker_class, burst)
