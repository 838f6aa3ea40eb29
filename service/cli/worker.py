"""`lathe worker`."""

from typing import Annotated

import typer

from service.cli.options import flag, state


def worker(
    burst: Annotated[bool, flag("--burst", "End when nothing is queued.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Run nothing; exit with 1 if no worker of this machine lives.")
    ] = False,
) -> None:
    """Run the jobs that replicas queue in Redis: fits and advice.

    Any number of workers may run, on any machine that reaches LATHE_REDIS_URL; each runs one job at a time. A job whose
    worker is lost is tried once more by another. Ctrl-C ends it after the job that runs, a second one at once.

    Besides LATHE_REDIS_URL it reads LATHE_HOME (room for what it works on, and its copy of the chains),
    LATHE_DATA_ROOT (where the files that fits name lie; unset: nowhere), LATHE_JOB_THREADS (half the cores unless set),
    LATHE_DEVICE (cpu, cuda, …) and LATHE_LOG_LEVEL. Which encoder to load comes with the job; models are looked for
    where HF_HOME says, and one with code of its own only runs if LATHE_ENCODERS names it.
    """
    settings, _ = state()
    settings.require_redis_extra()
    from service import logs
    from service.jobs.queue_worker import require_live_worker, work

    if check:
        typer.echo(require_live_worker(settings))
        return
    logs.configure(settings.log_level)
    work(settings, own=False, burst=burst)
