"""`lathe worker`: running of jobs that replicas queue in Redis."""

from typing import TYPE_CHECKING, Annotated

import typer

from lathe.service.cli.options import flag, load_state

if TYPE_CHECKING:
    from lathe.service.jobs.worker_class import WorkerClass


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
    A training does not keep it: it is queued again, and goes on from its last checkpoint on a worker with this
    LATHE_HOME, and from the beginning on another.

    Besides LATHE_REDIS_URL it reads LATHE_HOME (folder for its work, and its local replica of the chains),
    LATHE_DATA_ROOT (folder of the files that fits may name; unset: none), LATHE_JOB_THREADS (default: half the cores),
    LATHE_DEVICE (cpu, cuda, …) and LATHE_LOG_LEVEL. The job names the encoder; its model is looked up in HF_HOME, and
    runs code of its own only if LATHE_ENCODERS names it.
    """
    settings, _ = load_state()
    settings.require_redis_extra()
    worker_class: WorkerClass = "trainings" if training else "jobs"
    if check:
        from lathe.service.jobs.redis.heartbeats import require_live_worker

        typer.echo(require_live_worker(settings, worker_class))
        return
    from lathe.service import logs
    from lathe.service.jobs.redis.worker import run_worker

    logs.configure(settings.log_level)
    run_worker(settings, worker_class, own=False, burst=burst)
