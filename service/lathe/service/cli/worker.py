"""`lathe worker`: running of jobs that replicas queue in Redis."""

from typing import Annotated

import typer

from lathe.service.cli.options import flag, load_state


def worker(
    burst: Annotated[bool, flag("--burst", "End when no job is queued.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Run no job; exit with 1 if no worker of this machine is alive.")
    ] = False,
) -> None:
    """Run the jobs that replicas queue in Redis: fits and advice.

    Any number of workers may run, on any machine that reaches LATHE_REDIS_URL; each runs one job at a time. A job whose
    worker is lost is run once more by another. Ctrl-C ends the worker after the current job, a second Ctrl-C at once.

    Besides LATHE_REDIS_URL it reads LATHE_HOME (folder for its work, and its local replica of the chains),
    LATHE_DATA_ROOT (folder of the files that fits may name; unset: none), LATHE_JOB_THREADS (default: half the cores),
    LATHE_DEVICE (cpu, cuda, …) and LATHE_LOG_LEVEL. The job names the encoder; its model is looked up in HF_HOME, and
    runs code of its own only if LATHE_ENCODERS names it.
    """
    settings, _ = load_state()
    settings.require_redis_extra()
    if check:
        from lathe.service.jobs.redis.heartbeats import require_live_worker

        typer.echo(require_live_worker(settings))
        return
    from lathe.service import logs
    from lathe.service.jobs.redis.worker import run_worker

    logs.configure(settings.log_level)
    run_worker(settings, own=False, burst=burst)
