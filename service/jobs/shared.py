"""Jobs of all replicas: kept in Redis, run by `lathe worker`."""

import builtins
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from redis import exceptions as redis_errors
from rq.command import send_stop_job_command
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.serializers import JSONSerializer

from service.errors import UnknownNameError
from service.home import Home
from service.jobs.heartbeats import live_workers
from service.jobs.jobs import ResultFile
from service.jobs.queue import QUEUES, RECORD, JobQueue, JobRecords, queue_name
from service.jobs.store import Job, new_job
from service.shared.link import RedisLink

POLL_SECONDS = 1.0
CANCEL_SECONDS = 5.0
AGAIN_SECONDS = 10.0
OWN_KINDS = frozenset({"reindex"})
"""Jobs on files of this state folder, which no other machine has."""

log = logging.getLogger(__name__)


class SharedJobs:
    """Jobs in Redis; see `service.jobs.jobs.Jobs`.

    Jobs on this state folder's indexes have a queue of their own, and a worker that is started when there are some.

    Args:
        link: to Redis.
        home: whose indexes' jobs are run here.
        environment: of the processes that run them.
    """

    def __init__(self, link: RedisLink, home: Home, environment: dict[str, str]) -> None:
        self.link = link
        self.home = home
        self.environment = environment
        self.records = JobRecords(link.client)
        self.own_worker: subprocess.Popen[bytes] | None = None
        self.not_before = 0.0
        self.seen: tuple[int, int] | None = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, name="jobs", daemon=True)

    def start(self) -> None:
        """Look after jobs from now on."""
        self.thread.start()

    def stop(self) -> None:
        """Look after them no longer; those that run go on."""
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(timeout=5)

    @property
    def workers(self) -> int | None:
        """Live workers of this version; None without Redis."""
        return self.seen[1] if self.seen and self.link.up else None

    def warnings(self) -> list[str]:
        """That nobody takes what waits; without Redis there are other worries."""
        waiting, workers = self.seen or (0, 0)
        if not waiting or workers or not self.link.up:
            return []
        return [f"jobs wait ({waiting}) and no worker of Lathe {version('lathe')} is there: start `lathe worker`"]

    def submit(self, kind: str, request: Mapping[str, Any], files: Mapping[str, bytes]) -> Job:
        """Queue a job."""
        job = new_job(kind)
        queue = queue_name(self.home.read_or_make_id() if kind in OWN_KINDS else None)
        with self.link.reached():
            self.records.add(job, queue, request, files)
        return job

    def get(self, job_id: str) -> Job:
        """A job as it is now."""
        with self.link.reached():
            return self.records.get(job_id)

    def list(self) -> builtins.list[Job]:
        """All jobs, newest first."""
        found = []
        with self.link.reached():
            for job_id in self.records.ids():
                with suppress(UnknownNameError):  # removed meanwhile
                    found.append(self.records.get(job_id))
        return found

    def request(self, job_id: str) -> dict[str, Any]:
        """What a job was asked to do."""
        with self.link.reached():
            return dict(json.loads(self.records.record(job_id)[b"request"]))

    def cancel(self, job_id: str) -> Job:
        """Stop a job: a queued one ends at once, a running one is killed by its worker."""
        with self.link.reached() as client:
            job = self.records.get(job_id)
            if job.ended:
                return job
            client.hset(RECORD + job_id, "cancel", 1)
            deadline = time.monotonic() + CANCEL_SECONDS
            while not job.ended and time.monotonic() < deadline:
                with suppress(NoSuchJobError, InvalidJobOperation):  # it has just ended, or not quite begun
                    if job.state == "queued":
                        self.records.queued(job_id).cancel()
                    else:
                        send_stop_job_command(client, job_id, serializer=JSONSerializer)
                time.sleep(0.1)
                job = self.records.get(job_id)
            return job

    def result(self, job_id: str, name: str) -> ResultFile | None:
        """A file that a job made, read from Redis piece by piece."""
        with self.link.reached():
            self.records.record(job_id)
            return self.records.file(job_id, name)

    def run(self) -> None:
        """Look after the jobs until told to stop."""
        while not self.stopping.wait(POLL_SECONDS):
            if not self.link.up:
                continue
            try:
                self.look_after_jobs()
            except redis_errors.RedisError as error:
                log.warning("looking after the jobs: %s", error)
            except Exception:
                log.exception("looking after the jobs failed; trying again")

    def look_after_jobs(self) -> None:
        """Queue again what lost its worker, forget old jobs, start the worker of this state folder's own jobs."""
        queue = queue_name()
        self.seen = self.records.queue(queue).count, len(live_workers(self.link.client, queue))
        mine = self.records.queue(queue_name(self.home.read_or_make_id()))
        for found in JobQueue.all(connection=self.link.client):
            if found.name.startswith(QUEUES):  # of other versions too: nobody else may be left to do it
                self.records.clean(self.records.queue(found.name))
        self.records.prune()
        if self.own_worker is not None and (status := self.own_worker.poll()) is not None:
            self.own_worker = None
            if status:
                log.error("the worker of this server's own jobs ended with %d; starting it again later", status)
                self.not_before = time.monotonic() + AGAIN_SECONDS
        if mine.count and self.own_worker is None and time.monotonic() >= self.not_before:
            self.own_worker = subprocess.Popen(
                [sys.executable, "-c", "from service.jobs.queue_worker import main; main()", "--own", "--burst"],
                stdin=subprocess.DEVNULL,
                env=self.environment,
                start_new_session=True,  # so that Ctrl-C on the server spares it
            )
