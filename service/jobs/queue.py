"""Jobs in Redis: what they are, their files and their ends, beside RQ's queue that hands them to workers.

RQ knows whether a job waits or runs and tries it once more when its worker was lost. How it ended is written here, once
and for good: whoever comes second, a worker that was thought dead for instance, changes nothing.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from redis import Redis
from redis import exceptions as redis_errors
from redis.client import Pipeline
from rq import Queue, Retry
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job as QueuedJob
from rq.job import JobStatus
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer
from rq.worker_registration import clean_worker_registry

from service.errors import UnknownNameError
from service.jobs.clock import server_time
from service.jobs.heartbeats import live_workers
from service.jobs.jobs import PIECE_BYTES, ResultFile
from service.jobs.store import KEPT_MOST, Job, is_job_id

QUEUES = "lathe-"
JOBS = "lathe:jobs"
RECORD = "lathe:job:"
WAITING_SECONDS = 7 * 24 * 3600
"""How long a job waits for a worker at most. Its inputs have no time to live: a full Redis would evict them first."""
BEGINNING_SECONDS = 60.0
"""Within which a job that was written is queued, if ever."""
RESULTS = "lathe:results"
TRIES = 2
TAKEN_SECONDS = 2.0
"""Within which a worker that took a job says that it is at it."""
MAINTENANCE_SECONDS = 5
"""After so long, whoever was cleaning a queue is taken for dead."""


@dataclass(frozen=True)
class Limits:
    """What Redis keeps of jobs at most.

    Attributes:
        jobs: that have ended; the oldest go.
        result_bytes: of one result; a larger one does not go through Redis's memory.
        results_bytes: of all results; the oldest make room.
    """

    jobs: int = KEPT_MOST
    result_bytes: int = 256 << 20
    results_bytes: int = 512 << 20


LIMITS = Limits()


class JobQueue(Queue):
    """RQ's queue, whose cleaning a killed process does not hold up for long."""

    def acquire_maintenance_lock(self) -> bool:
        """The right to clean the queue."""
        return bool(self.connection.set(self.registry_cleaning_key, 1, nx=True, ex=MAINTENANCE_SECONDS))


def queue_name(home_id: str | None = None) -> str:
    """The queue of this version of Lathe; another one's jobs are not understood.

    Args:
        home_id: of the state folder whose jobs they are; None for those that any worker can run.
    """
    return f"{QUEUES}{version('lathe')}" + (f"-{home_id}" if home_id else "")


class JobRecords:
    """The jobs of all replicas.

    Args:
        client: of Redis; its errors are not caught here.
        limits: of what is kept.
    """

    def __init__(self, client: Redis, limits: Limits = LIMITS) -> None:
        self.client = client
        self.limits = limits

    def queue(self, name: str) -> JobQueue:
        """A queue by its name."""
        return JobQueue(name, connection=self.client, serializer=JSONSerializer, default_timeout=-1)

    def add(self, job: Job, queue: str, request: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Add a job whole, then queue it."""
        key = RECORD + job.id
        with self.client.pipeline() as pipe:
            pipe.hset(key, mapping={"job": json.dumps(asdict(job)), "request": json.dumps(request), "queue": queue})
            pipe.hset(key, "files", json.dumps(list(files)))
            for name, content in files.items():
                pipe.delete(file_key(job.id, name))  # the client may send all this twice
                write_file(pipe, job.id, name, pieces(content))
            pipe.zadd(JOBS, {job.id: server_time(self.client)})
            pipe.execute()
        self.queue(queue).enqueue_call(
            "service.jobs.queued_process.perform",
            args=[job.id],
            job_id=job.id,
            timeout=-1,
            result_ttl=-1,
            failure_ttl=-1,
            retry=Retry(max=TRIES - 1),
            description=job.kind,
        )

    def ids(self) -> list[str]:
        """All jobs, newest first."""
        found: Any = self.client.zrevrange(JOBS, 0, -1)
        return [job_id.decode() for job_id in found]

    def record(self, job_id: str) -> dict[bytes, bytes]:
        """What is written of a job.

        Raises:
            UnknownNameError: if there is no such job.
        """
        found: Any = self.client.hgetall(RECORD + job_id) if is_job_id(job_id) else {}
        if b"job" not in found:
            raise UnknownNameError(f"there is no job {job_id!r}", param="id")
        return dict(found)

    def get(self, job_id: str) -> Job:
        """A job as it is now; one that RQ has given up is ended here.

        Raises:
            UnknownNameError: if there is no such job.
        """
        record = self.record(job_id)
        if b"end" in record:
            return Job(**json.loads(record[b"end"]))
        job = Job(**json.loads(record[b"job"]))
        try:
            queued = self.queued(job_id)
        except NoSuchJobError:
            if self.age(job_id) < BEGINNING_SECONDS:  # it is just being queued
                return job
            return self.end(lost(job, cancelled=b"cancel" in record))
        told: dict[str, Any] = {key: queued.meta[key] for key in ("progress", "message") if key in queued.meta}
        match queued.get_status(refresh=False):
            case JobStatus.STARTED:
                return replace(job, state="running", **({"message": "starting"} | told))
            case JobStatus.FAILED | JobStatus.STOPPED | JobStatus.CANCELED | JobStatus.FINISHED:
                return self.end(lost(replace(job, **told), cancelled=b"cancel" in record))
            case _ if b"cancel" in record:  # its worker was lost before it could stop it
                queued.cancel()
                return self.end(lost(job, cancelled=True))
            case _:
                return replace(job, message=self.waiting(queued, record[b"queue"].decode()))

    def age(self, job_id: str) -> float:
        """Seconds since a job was added, by Redis's clock."""
        added: Any = self.client.zscore(JOBS, job_id)
        return server_time(self.client) - float(added or 0)

    def waiting(self, queued: QueuedJob, queue: str) -> str:
        """What a job waits for."""
        if queued.retries_left is not None and queued.retries_left < TRIES - 1:
            return "its worker was lost; waiting for another"
        _, of, *home = queue.split("-")
        if home or live_workers(self.client, queue):  # a server starts the worker of its own jobs
            return "waiting"
        return f"waiting: no worker of Lathe {of} is there"

    def queued(self, job_id: str) -> QueuedJob:
        """A job as RQ has it.

        Raises:
            NoSuchJobError: if it has none.
        """
        return QueuedJob.fetch(job_id, connection=self.client, serializer=JSONSerializer)

    def end(self, job: Job) -> Job:
        """Write a job's end, unless it has one; what holds then."""
        key = RECORD + job.id
        self.client.hsetnx(key, "end", json.dumps(asdict(job)))
        written: Any = self.client.hget(key, "end")
        files = json.loads(self.record(job.id).get(b"files", b"[]"))
        if files:
            self.client.delete(*(file_key(job.id, name) for name in files))  # nobody needs a caller's texts any more
        return Job(**json.loads(written))

    def file(self, job_id: str, name: str) -> ResultFile | None:
        """A job's file; None if it has none of that name."""
        key = file_key(job_id, name)
        count = int(self.client.llen(key))
        if not count:
            return None
        size = (count - 1) * PIECE_BYTES + len(self.piece(key, -1))
        return ResultFile(size, self.pieces_of(key, count))

    def pieces_of(self, key: str, count: int) -> Iterator[bytes]:
        """A file's bytes."""
        for index in range(count):
            yield self.piece(key, index)

    def piece(self, key: str, index: int) -> bytes:
        """One of a file's pieces; empty if it is gone."""
        found: Any = self.client.lindex(key, index)
        return found or b""

    def keep_results(self, job_id: str, paths: list[Path]) -> list[str]:
        """Put the files that a job made where all replicas find them; the names of those too large for that."""
        refused = []
        for path in paths:
            size = path.stat().st_size
            if size > self.limits.result_bytes:
                refused.append(path.name)
                continue
            try:
                with self.client.pipeline() as pipe:
                    pipe.delete(file_key(job_id, path.name))
                    write_file(pipe, job_id, path.name, ResultFile.of(path.open("rb")).pieces)
                    pipe.hset(RECORD + job_id, f"result:{path.name}", size)
                    pipe.hincrby(RESULTS, job_id, size)
                    pipe.execute()
            except redis_errors.OutOfMemoryError:
                refused.append(path.name)
        self.make_room()
        return refused

    def make_room(self) -> None:
        """Remove the oldest results beyond the bytes of all; their jobs stay."""
        found: Any = self.client.hgetall(RESULTS)
        sizes = {job_id.decode(): int(size) for job_id, size in found.items()}
        for job_id in [job_id for job_id in reversed(self.ids()) if job_id in sizes]:
            if sum(sizes.values()) <= self.limits.results_bytes or len(sizes) == 1:
                return
            self.drop_results(job_id)
            del sizes[job_id]

    def drop_results(self, job_id: str) -> None:
        """Remove the files that a job made."""
        record: Any = self.client.hgetall(RECORD + job_id)
        names = [key.decode().removeprefix("result:") for key in record if key.startswith(b"result:")]
        if names:
            self.client.delete(*(file_key(job_id, name) for name in names))
        self.client.hdel(RESULTS, job_id)

    def prune(self) -> None:
        """Remove the oldest ended jobs beyond those kept, and give up those that waited too long."""
        for job_id in self.ids()[self.limits.jobs :]:
            with suppress(UnknownNameError):
                if not self.get(job_id).ended:
                    continue
                self.drop_results(job_id)
                self.client.delete(RECORD + job_id)
                with suppress(NoSuchJobError):
                    self.queued(job_id).delete()
            self.client.zrem(JOBS, job_id)
        old: Any = self.client.zrangebyscore(JOBS, 0, server_time(self.client) - WAITING_SECONDS)
        for job_id in old:
            with suppress(UnknownNameError, NoSuchJobError, InvalidJobOperation):
                job = self.get(job_id.decode())
                if job.state == "queued":
                    self.queued(job.id).cancel()
                    self.end(replace(lost(job, cancelled=False), error="no worker took the job for a week"))

    def clean(self, queue: JobQueue) -> None:
        """Queue again what lost its worker, or give it up, by Redis's clock; and forget the worker."""
        if queue.acquire_maintenance_lock():
            try:
                registry = StartedJobRegistry(queue=queue)
                registry.cleanup(timestamp=server_time(self.client))
                clean_worker_registry(queue)
                self.queue_again(queue, alive=set(registry.get_job_ids(cleanup=False)))
            finally:
                queue.release_maintenance_lock()  # type: ignore[no-untyped-call]

    def queue_again(self, queue: JobQueue, alive: set[str]) -> None:
        """Queue again what a worker took and was killed before it began; RQ itself waits for minutes with that."""
        taken = IntermediateQueue(queue.key, self.client)
        for job_id in set(taken.get_job_ids()) - alive:
            now, key = server_time(self.client), taken.get_first_seen_key(job_id)
            self.client.set(key, now, nx=True, ex=24 * 3600)
            seen: Any = self.client.get(key)
            if now - float(seen or now) < TAKEN_SECONDS:
                continue
            with suppress(NoSuchJobError), self.client.pipeline() as pipe:
                job = self.queued(job_id)
                pipe.lrem(taken.key, 1, job_id)
                pipe.delete(key)
                if job.retries_left:
                    job.retry(queue, pipe)
                else:
                    job.set_status(JobStatus.FAILED, pipeline=pipe)
                pipe.execute()


def lost(job: Job, cancelled: bool) -> Job:
    """A job that ended without a word of its own."""
    return replace(
        job,
        state="cancelled" if cancelled else "failed",
        message="cancelled" if cancelled else "its workers were lost",
        error=None if cancelled else f"the job's process was killed or crashed {TRIES} times, last while {job.message}",
        finished_at=datetime.now(UTC).isoformat(),
    )


def write_file(pipe: Pipeline, job_id: str, name: str, content: Iterator[bytes]) -> None:
    """Queue the writing of a file."""
    empty = True
    for piece in content:
        pipe.rpush(file_key(job_id, name), piece)
        empty = False
    if empty:
        pipe.rpush(file_key(job_id, name), b"")


def pieces(content: bytes) -> Iterator[bytes]:
    """Bytes in pieces."""
    return (content[start : start + PIECE_BYTES] for start in range(0, len(content), PIECE_BYTES))


def file_key(job_id: str, name: str) -> str:
    """Where a job's file is."""
    return f"{RECORD}{job_id}:{name}"
