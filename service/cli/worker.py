"""`lathe worker`."""

from typing import Annotated

from service import logs
from service.cli.options import flag, state


def worker(
    burst: Annotated[bool, flag("--burst", "End when nothing is queued.")] = False,
) -> None:
    """Run the jobs that replicas queue in Redis: fits and advice.

    Any number of workers may run, on any machine that reaches LATHE_REDIS_URL; each runs one job at a time. A job whose
    worker is lost is tried once more by another. Ctrl-C ends it after the job that runs, a second one at once.
    """
    settings, _ = state()
    settings.require_redis_extra()
    from service.jobs.queue_worker import work

    logs.configure(settings.log_level)
    work(settings, own=False, burst=burst)
