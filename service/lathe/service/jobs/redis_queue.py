"""Jobs in Redis, which replicas share and workers take.

    submit ──► waiting (lathe:queue:<queue>) ──take──► running (lathe:running) ──end──► ended (in the record, once)
                         ▲                                   │
                         └── give back: no heartbeat of its worker for LOST_SECONDS, or its process was killed

Until it has ended, a job is either in a queue or running, and moves between them in a single script. Times are of
Redis's clock, so the clocks of machines need not agree. A job's end is written once: a second writer, for instance a
worker that was considered dead, changes nothing.

A stream with a consumer group would spare none of this: the job of a dead worker stays pending, and is shown as
running, until another worker claims it; cancelling a waiting job and giving one back take records and scripts too.

lathe:workers:<queue>   sorted set: machine/process → time of its last heartbeat

All that is read here is data, checked when it is read (see `lathe.service.jobs.redis_record`); none of it names code.
"""

import builtins
import json
import math
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import wraps
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from filelock import Timeout
from redis import Redis
from redis import exceptions as redis_errors

from lathe.service.errors import UnavailableError, UnknownNameError
from lathe.service.home import Home
from lathe.service.jobs.job import (
    COMMANDS,
    INPUT_NAMES,
    LOG,
    TRAINING_KINDS,
    VECTORS,
    Job,
    ResultFile,
    WorkerClass,
    create_job,
    is_job_id,
)
from lathe.service.jobs.redis_record import (
    FIELDS,
    JOBS,
    LIMITS,
    RECORD,
    FileLimits,
    JobFiles,
    JobRecord,
    build_input_keys,
    decode_id,
    filter_job_ids,
    parse_record,
    write_file,
)
from lathe.service.redis.connection import RedisConnection, as_unavailable, connect, is_wrong_type, note_damage
from lathe.service.settings import Settings
from lathe.training.locks import lock_file
from lathe.transforms.files import create_file, make_folder, make_root, read_pieces

QUEUE = "lathe:queue:"
RUNNING = "lathe:running"
WORKERS = "lathe:workers:"
WAITING_SECONDS = 7 * 24 * 3600
"""Maximum seconds that a job waits for a worker. Its inputs do not expire: a full Redis would evict them first."""
MAX_TRIES = 2
"""Number of times a job is taken by a worker before it is given up."""
LOST_SECONDS = 8.0
"""Seconds without a heartbeat after which a worker is considered dead, and its job is queued again."""
HEARTBEAT_SECONDS = 2.0
"""Seconds between two heartbeats of a worker."""
ALIVE_SECONDS = 15.0
"""Seconds after its last heartbeat for which a worker counts as alive."""
FORGOTTEN_SECONDS = 24 * 3600.0
"""Seconds after which the heartbeat of a worker that has ended is removed."""
PRUNE_SECONDS = 10.0
"""Seconds between two removals of old jobs."""
END_SECONDS = 120.0
"""Seconds for which writing a job's end is retried while Redis is unreachable."""
SOCKET_SECONDS = 15.0
"""Timeout of a request of a worker or a job to Redis."""
CHECK_SECONDS = 5.0
"""Timeout of the request with which a worker's health is checked."""
SCRATCH = ".queued-"
"""Prefix of the temporary folders in which jobs run."""
LEFT_SECONDS = 60.0
"""Age in seconds from which an unlocked temporary folder is removed."""
OWN_KINDS = frozenset({"reindex", "calibrate", "checkup"})
"""Kinds of jobs on files of one state folder, which no other machine has."""
WORKERS_LOST = "its workers were lost"
"""Message of a job that no worker brought to its end."""
WATCHED: tuple[WorkerClass, ...] = ("jobs", "trainings")
"""Classes of workers that somebody has to start."""

TAKE = """
local id = redis.call('LINDEX', KEYS[1], 0)
if not id then return false end
local now = redis.call('TIME')
redis.call('ZADD', KEYS[2], now[1] + now[2] / 1e6, id)
redis.call('LPOP', KEYS[1])
return id
"""
"""Lua script that moves the first job of a queue to the running ones, and returns its id or false.

Keys: queue, running. A full Redis refuses the ZADD, and the job stays in the queue."""

GIVE_BACK = """
local heard = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not heard or tonumber(heard) > tonumber(ARGV[2]) then return 0 end
redis.call('LPUSH', KEYS[1], ARGV[1])
return redis.call('ZREM', KEYS[2], ARGV[1])
"""
"""Lua script that moves a running job to the front of its queue, unless its worker's last heartbeat is too recent.

Keys: queue, running. Arguments: job, and the latest time that its worker's last heartbeat may have."""


P = ParamSpec("P")
T = TypeVar("T")


def _reaching(method: "Callable[Concatenate[RedisQueue, P], T]") -> "Callable[Concatenate[RedisQueue, P], T]":
    """Return a method of `RedisQueue` that raises `UnavailableError` in place of the errors of Redis."""

    @wraps(method)
    def reach(queue: "RedisQueue", /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with queue.connection.reached():
                return method(queue, *args, **kwargs)
        except UnavailableError:
            # The other workers, too, can send no heartbeat, and need a moment once they can.
            queue.patient_until = time.monotonic() + LOST_SECONDS
            queue.announced_at = -math.inf
            raise

    return reach


class RedisQueue:
    """The jobs of all replicas, in Redis. It has the methods of `lathe.service.jobs.job.JobQueue`.

    As a worker it has a unique name. After an outage, nothing is queued again for `LOST_SECONDS`, because the other
    workers could send no heartbeat either.

    Args:
        connection: connection to Redis.
        home: the state folder, in which jobs of this machine run.
        limits: limits on what Redis keeps.
    """

    shared = True

    def __init__(self, connection: RedisConnection, home: Home, limits: FileLimits = LIMITS) -> None:
        self.connection = connection
        self.client: Redis = connection.client
        self.home = home
        self.limits = limits
        self.files = JobFiles(self.client, limits)
        self.worker = f"{socket.gethostname()}/{os.getpid()}-{secrets.token_hex(4)}"
        self.patient_until = self.announced_at = self.pruned_at = -math.inf
        self.seen: dict[WorkerClass, tuple[int, int]] = {}
        self._take = self.client.register_script(TAKE)
        self._give_back = self.client.register_script(GIVE_BACK)

    @classmethod
    def open(cls, settings: Settings) -> "RedisQueue":
        """Open the queue in the Redis of the settings, for a worker or the process of a job."""
        return cls(RedisConnection(settings.redis_url, SOCKET_SECONDS), Home(settings.home))

    def get_queue_name(self, worker_class: WorkerClass) -> str:
        """Return the name of the queue in Redis from which a class of workers takes jobs."""
        return build_queue_name(worker_class, self.home.read_or_create_id() if worker_class == "own" else None)

    # What a server does

    @property
    def workers(self) -> dict[WorkerClass, int] | None:
        """Number of live workers of this version of Lathe, by class, as last seen, or None while Redis is down."""
        return {name: workers for name, (_, workers) in self.seen.items()} if self.seen and self.connection.up else None

    def warnings(self) -> builtins.list[str]:
        """List warnings about jobs that wait without a live worker of their class. Empty while Redis is down."""
        return [
            f"{name} wait ({waiting}) and {_describe_missing_worker(build_queue_name(name))}"
            for name, (waiting, workers) in self.seen.items()
            if waiting and not workers and self.connection.up
        ]

    @_reaching
    def maintain(self) -> None:
        """Requeue jobs of dead workers, count waiting jobs and live workers, and every `PRUNE_SECONDS` remove old jobs.

        Before the removal, a key is written, because a Redis that takes no writes may answer everything else. A server
        does nothing while its replicator finds Redis down.
        """
        if self.connection.has_replicator and not self.connection.up:
            self.patient_until = time.monotonic() + LOST_SECONDS
            return
        for name in WATCHED:
            workers = list_live_workers(self.client, build_queue_name(name))
            self.seen[name] = self.count_waiting(name), len(workers)
        self.requeue_lost_jobs()
        if time.monotonic() - self.pruned_at >= PRUNE_SECONDS:
            self.client.set("lathe:writable", b"", ex=60)
            self.prune()
            self.pruned_at = time.monotonic()

    @_reaching
    def submit(self, kind: str, request: Mapping[str, Any], files: Mapping[str, bytes]) -> Job:
        """Write a job with its request and input files to Redis, and queue it, in one transaction. Return the job."""
        job = create_job(kind)
        queue = self.get_queue_name("own" if kind in OWN_KINDS else "trainings" if kind in TRAINING_KINDS else "jobs")
        fields = json.dumps(asdict(job)), json.dumps(request), json.dumps(list(files)), queue
        with self.client.pipeline() as pipe:
            pipe.hset(RECORD + job.id, mapping=dict(zip(("job", "request", "files", "queue"), fields, strict=True)))
            for name, content in files.items():
                write_file(pipe, job.id, name, read_pieces(BytesIO(content)))
            pipe.zadd(JOBS, {job.id: read_server_time(self.client)})
            pipe.lrem(QUEUE + queue, 0, job.id)  # the client may send all this twice
            pipe.rpush(QUEUE + queue, job.id)
            pipe.execute()
        return job

    def list_ids(self) -> builtins.list[str]:
        """List the ids of all jobs, newest first. Invalid ids are skipped."""
        members: Any = self.client.zrevrange(JOBS, 0, -1)
        return filter_job_ids(members)

    def _find_all(self, ids: Iterable[str]) -> builtins.list[JobRecord]:
        """Return the records of the jobs with these ids, in order. Ids without a record are skipped."""
        job_ids = list(ids)
        with self.client.pipeline(transaction=True) as pipe:
            for job_id in job_ids:
                pipe.hmget(RECORD + job_id, FIELDS)
                pipe.zscore(RUNNING, job_id)
            replies = pipe.execute(raise_on_error=False)
        # Two replies for each job: its fields, and its worker's last heartbeat.
        records = (parse_record(*row) for row in zip(job_ids, replies[::2], replies[1::2], strict=True))
        return [record for record in records if record is not None]

    @_reaching
    def find(self, job_id: str) -> JobRecord:
        """Return the record of a job. Raise `UnknownNameError` if there is no such job."""
        records = self._find_all([job_id]) if is_job_id(job_id) else []
        if not records:
            raise UnknownNameError(f"there is no job {job_id!r}", param="id")
        return records[0]

    @_reaching
    def get(self, job_id: str) -> Job:
        """Return a job in its current state. The message of a waiting job says what it waits for."""
        return self._describe_waiting(self.find(job_id))

    @_reaching
    def list(self) -> builtins.list[Job]:
        """Return all jobs, newest first, with a message that says what each waiting job waits for."""
        records = self._find_all(self.list_ids())
        workers = {name: self._has_workers(name) for name in {record.queue for record in records if record.waiting}}
        return [self._describe_waiting(record, workers.get(record.queue)) for record in records]

    def _describe_waiting(self, record: JobRecord, has_workers: bool | None = None) -> Job:
        """Return the job of a record. If it waits, its message says what it waits for, such as a worker.

        Args:
            record: the record.
            has_workers: whether its queue has workers; None to ask Redis.
        """
        if not record.waiting:
            return record.job
        if record.tries:
            return replace(record.job, message="its worker was lost; waiting for another")
        if has_workers or (has_workers is None and self._has_workers(record.queue)):
            return replace(record.job, message="waiting")
        return replace(record.job, message=f"waiting: {_describe_missing_worker(record.queue)}")

    def _has_workers(self, queue: str) -> bool:
        """Return whether a queue has live workers. The queue of one state folder always has: the server starts it."""
        return ":" in queue or bool(list_live_workers(self.client, queue))

    @_reaching
    def read_request(self, job_id: str) -> bytes:
        """Return a job's request as the JSON bytes that were written, without parsing, or b"" if it is missing."""
        self.find(job_id)
        content: Any = self.client.hget(RECORD + job_id, "request")
        return content or b""

    def report_damaged_request(self, job_id: str, why: str) -> None:
        """Count and log that a job's request cannot be read."""
        note_damage("job request", job_id, why)

    @_reaching
    def open_result(self, job_id: str, name: str) -> ResultFile | None:
        """Return the result file `name` of a job, whose pieces are read from Redis lazily, or None."""
        self.find(job_id)
        return self.files.read(job_id, name)

    @_reaching
    def count_waiting(self, worker_class: WorkerClass) -> int:
        """Count the jobs that wait for workers of a class."""
        count: Any = self.client.llen(QUEUE + self.get_queue_name(worker_class))
        return int(count)

    @_reaching
    def cancel(self, job_id: str) -> Job:
        """Cancel a job, and return it. A waiting job ends at once, and a running job is stopped later by its worker.

        A job that has ended is returned unchanged.
        """
        record = self.find(job_id)
        if record.job.ended:
            return record.job
        # Noted first: a worker that takes the job in this moment finds it cancelled.
        self.client.hset(RECORD + job_id, "cancel", 1)
        if self.client.lrem(QUEUE + record.queue, 0, job_id):
            return self.write_end(record.job.cancel())
        return record.job

    # What a worker does

    @_reaching
    def announce(self, worker_class: WorkerClass) -> None:
        """Send a heartbeat of this worker, and requeue jobs of dead workers, at most every `HEARTBEAT_SECONDS`."""
        if time.monotonic() - self.announced_at < HEARTBEAT_SECONDS:
            return
        key, now = WORKERS + self.get_queue_name(worker_class), read_server_time(self.client)
        with self.client.pipeline(transaction=False) as pipe:
            pipe.zadd(key, {self.worker: now})
            pipe.zremrangebyscore(key, "-inf", now - FORGOTTEN_SECONDS)
            pipe.execute()
        self.requeue_lost_jobs()
        self.announced_at = time.monotonic()

    @_reaching
    def leave(self, worker_class: WorkerClass) -> None:
        """Remove this worker's heartbeat, so that it no longer counts as alive."""
        self.client.zrem(WORKERS + self.get_queue_name(worker_class), self.worker)

    def rejects_password(self, error: UnavailableError) -> bool:
        """Return whether the error means that Redis rejects the password."""
        return isinstance(error.__cause__, redis_errors.AuthenticationError)

    @_reaching
    def take(self, worker_class: WorkerClass) -> Job | None:
        """Mark the next job of a class as running by this worker and return it, or None if there is none to run.

        A job that was cancelled or has no tries left is ended instead. A job that has ended or has no record is
        dropped.
        """
        taken: Any = self._take(keys=[QUEUE + self.get_queue_name(worker_class), RUNNING])
        if taken is None:
            return None
        for record in self._find_all(filter_job_ids([taken])):
            if not record.job.ended and not self._end_if_cancelled_or_out_of_tries(record):
                job = replace(record.job, state="running", message="starting")
                fields = json.dumps(asdict(job)), str(record.tries + 1), self.worker
                self.client.hset(RECORD + job.id, mapping=dict(zip(("now", "tries", "worker"), fields, strict=True)))
                return job
        self.client.zrem(RUNNING, taken)
        return None

    @_reaching
    def record_job_heartbeat(self, job: Job) -> Literal["goes on", "cancelled", "lost"]:
        """Record that this worker still runs a job, and return "goes on", or "cancelled" or "lost" if it must stop.

        A job is lost to a worker if it is not running any more, or another worker has it. Nothing is recorded for a job
        that was cancelled or lost.
        """
        with self.client.pipeline(transaction=False) as pipe:
            pipe.hmget(RECORD + job.id, "worker", "cancel")
            pipe.zscore(RUNNING, job.id)
            fields, heard = pipe.execute(raise_on_error=False)
        if isinstance(fields, Exception) or fields[0] != self.worker.encode() or heard is None:
            return "lost"
        if fields[1] is not None:
            return "cancelled"
        # `xx` updates only: a job that has just ended must not become a running one again.
        self.client.zadd(RUNNING, {job.id: read_server_time(self.client)}, xx=True)
        return "goes on"

    @_reaching
    def release(self, job: Job, counts: bool = True) -> None:
        """Queue an unfinished job again, or end it if it was cancelled or has no tries left, unless it is lost.

        The process of the job must be over. A job is lost if another worker has it.
        """
        if self.record_job_heartbeat(job) != "lost":
            if not counts:
                self.client.hincrby(RECORD + job.id, "tries", -1)
            self._requeue([job.id], silent_since=math.inf)

    def open_output(self, job_id: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return a context that yields None: the process of a job writes to the worker's output."""
        return nullcontext()

    # What the process of a job does

    @contextmanager
    def claim(self, job_id: str) -> Iterator[tuple[Job, Path] | None]:
        """Yield a taken job and a temporary folder for it, or None if the job has ended or was queued again.

        A job is queued again if its worker was considered dead before this process began. Temporary folders of killed
        processes are removed first.
        """
        record = self.find(job_id)
        if record.job.ended or record.waiting:
            yield None
            return
        make_root(self.home.jobs)
        _delete_leftovers(self.home.jobs)
        with (
            tempfile.TemporaryDirectory(dir=self.home.jobs, prefix=SCRATCH) as scratch,
            lock_file(Path(scratch) / ".lock"),
        ):
            folder = Path(scratch) / job_id  # results name the job by its folder
            make_folder(folder)
            yield record.job, folder

    @_reaching
    def fetch_inputs(self, job_id: str, folder: Path) -> str | None:
        """Copy a job's input files from Redis to its folder. Return a sentence if they are missing or damaged."""
        try:
            for name in self.files.read_input_names(job_id):
                input_file = self.files.read(job_id, name)
                if input_file is None:
                    return "the job's inputs are missing in Redis: send the job again"
                with create_file(folder / name) as file:
                    file.writelines(input_file.pieces)
        except (ValueError, redis_errors.ResponseError):
            return "the job's inputs in Redis are damaged: send the job again"
        return None

    def write_progress(self, job: Job, folder: Path) -> None:
        """Write the state of a running job and its training log. An unavailable Redis is ignored.

        Nothing is written if the record of the job is gone.
        """
        with suppress(UnavailableError):  # a short outage of Redis does not stop a job
            self._write_progress(job, folder / LOG)

    @_reaching
    def _write_progress(self, job: Job, training_log: Path) -> None:
        # A record written after Redis lost its data would be in no list, and would never be deleted.
        """Write the state of a running job, and its training log if it has grown, unless the job's record is gone."""
        if not self.client.hexists(RECORD + job.id, "job"):
            return
        self.client.hset(RECORD + job.id, "now", json.dumps(asdict(job)))
        if training_log.exists() and self.files.read_size(job.id, LOG) != training_log.stat().st_size:
            self.files.store_results(job.id, [training_log])

    def end(self, job: Job, folder: Path) -> None:
        """Write the end of a job with its result files. Retry for `END_SECONDS` while Redis is unreachable or full.

        Raises:
            UnavailableError: if Redis is not available for `END_SECONDS`, or at once for another reason.
        """
        results = [path for path in folder.iterdir() if path.is_file() and path.name not in INPUT_NAMES]
        deadline = time.monotonic() + END_SECONDS
        while True:
            try:
                self.write_end(job if job.result is None else self._store_results(job, results))
                return
            except UnavailableError as error:
                if not error.may_pass or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    @_reaching
    def _store_results(self, job: Job, results: builtins.list[Path]) -> Job:
        """Store a job's result files in Redis. The returned job says so if its vectors were too large."""
        if job.result is None or VECTORS not in self.files.store_results(job.id, results):
            return job
        message = "too large to go through Redis: `lathe reduce` with the chain gives the same vectors"
        return replace(job, result=job.result | {"vectors_url": None, "vectors_error": message})

    @_reaching
    def write_end(self, job: Job) -> Job:
        """Write the end of a job unless an end is written already, delete its inputs, and return the stored job.

        A job without a record is returned unchanged, and nothing is written.
        """
        key = RECORD + job.id
        if not self.client.hexists(key, "job"):  # Redis lost its data, or the job was deleted
            return job
        with self.client.pipeline() as pipe:
            # Only the first writer sets the end; a worker that was given up changes nothing.
            pipe.hsetnx(key, "end", json.dumps(asdict(job)))
            pipe.zrem(RUNNING, job.id)
            pipe.delete(*build_input_keys(job.id))  # a caller's texts are not needed any more
            pipe.execute()
        return self.find(job.id).job

    # What servers and workers do

    @_reaching
    def requeue_lost_jobs(self) -> None:
        """Requeue running jobs without a heartbeat for `LOST_SECONDS`, or end them if no tries are left.

        Invalid ids are removed. Nothing is done soon after an outage.
        """
        if time.monotonic() < self.patient_until:
            return
        # Heartbeats and this are of Redis's clock, so that clocks of machines may differ.
        silent_since = read_server_time(self.client) - LOST_SECONDS
        members: Any = self.client.zrangebyscore(RUNNING, "-inf", silent_since)
        if members:
            job_ids = filter_job_ids(members)
            self._requeue(job_ids, silent_since)
            if len(job_ids) < len(members):
                self.client.zrem(RUNNING, *(member for member in members if not is_job_id(decode_id(member))))

    def _requeue(self, ids: Collection[str], silent_since: float) -> None:
        """Requeue running jobs, or end those that were cancelled or have no tries left.

        Jobs that have ended, or have no record, are removed from the running jobs.

        Args:
            ids: ids of the jobs.
            silent_since: jobs with a heartbeat after this time are left running.
        """
        records = {record.job.id: record for record in self._find_all(ids)}
        for job_id in ids:
            record = records.get(job_id)
            if record is None or record.job.ended:
                self.client.zrem(RUNNING, job_id)
            elif not self._end_if_cancelled_or_out_of_tries(record):
                try:
                    self._give_back(keys=[QUEUE + record.queue, RUNNING], args=[job_id, silent_since])
                except redis_errors.ResponseError as error:
                    if not is_wrong_type(error):
                        raise
                    note_damage("queue", record.queue, "it is not a list")

    def _end_if_cancelled_or_out_of_tries(self, record: JobRecord) -> bool:
        job = record.job
        if record.cancelled:
            self.write_end(job.cancel())
        elif record.tries >= MAX_TRIES:
            error = f"the job's process was killed or crashed {MAX_TRIES} times, last while {job.message}"
            self.write_end(job.fail(error, WORKERS_LOST))
        return record.cancelled or record.tries >= MAX_TRIES

    @_reaching
    def prune(self) -> None:
        """Delete the oldest ended jobs over the limit, and end jobs that waited for a week or that Redis lost.

        Redis lost a job that neither waits nor runs.
        """
        ids = self.list_ids()
        for record in self._find_all(ids[self.limits.jobs :]):
            if record.job.ended:
                self._delete(record.job.id)

        waiting = [record for record in self._find_all(ids) if not record.job.ended]
        old: Any = self.client.zrangebyscore(JOBS, "-inf", read_server_time(self.client) - WAITING_SECONDS)
        too_old = set(filter_job_ids(old))
        for record in waiting:
            # The removal decides: a job that a worker has just taken is not in the queue any more.
            if record.job.id in too_old and self.client.lrem(QUEUE + record.queue, 0, record.job.id):
                self.write_end(record.job.fail("no worker took the job for a week", WORKERS_LOST))
        self._end_stranded(waiting)

    def _end_stranded(self, records: Collection[JobRecord]) -> None:
        """End jobs that are neither queued nor running, as cancelled if a stop was requested, else as failed.

        Redis lost such jobs. If a queue cannot be read, nothing is ended.
        """
        queues = sorted({record.queue for record in records})
        with self.client.pipeline() as pipe:
            pipe.zrange(RUNNING, 0, -1)
            for queue in queues:
                pipe.lrange(QUEUE + queue, 0, -1)
            members_by_key = pipe.execute(raise_on_error=False) if records else []
        if any(isinstance(part, Exception) for part in members_by_key):
            return  # a queue cannot be read, so which jobs wait is unknown
        present_ids = {decode_id(member) for part in members_by_key for member in part}
        for record in records:
            if record.job.id not in present_ids:  # one that has ended meanwhile keeps its end
                error = "the job is in no queue: Redis lost it; send it again"
                self.write_end(record.job.cancel() if record.cancelled else record.job.fail(error, WORKERS_LOST))

    def _delete(self, job_id: str) -> None:
        self.files.delete_results(job_id)
        self.client.delete(RECORD + job_id, *build_input_keys(job_id))
        self.client.zrem(JOBS, job_id)


def _delete_leftovers(jobs: Path) -> None:
    """Delete temporary job folders that killed processes left: unlocked, and more than `LEFT_SECONDS` old.

    They may hold callers' texts.
    """
    for folder in jobs.glob(f"{SCRATCH}*"):
        with suppress(Timeout, OSError):
            if time.time() - folder.stat().st_mtime > LEFT_SECONDS:  # younger ones may be about to be locked
                with lock_file(folder / ".lock").acquire(blocking=False):
                    shutil.rmtree(folder, ignore_errors=True)


def build_queue_name(worker_class: WorkerClass = "jobs", home_id: str | None = None) -> str:
    """Build the name of a queue of this version of Lathe, which does not run jobs of other versions.

    Args:
        worker_class: class of the workers that take its jobs.
        home_id: id of the state folder whose own jobs it holds; None for jobs that any worker of the class can run.
    """
    if home_id:
        return f"{version('lathe-service')}:{home_id}"
    return version("lathe-service") + ("/trainings" if worker_class == "trainings" else "")


def _describe_missing_worker(queue: str) -> str:
    number, _, trainings = queue.partition("/")
    command = COMMANDS["trainings" if trainings else "jobs"]
    return f"no worker of Lathe {number} is there: start `{command}`"


def read_server_time(client: Redis) -> float:
    """Return the time of Redis's clock in seconds since 1970."""
    answer: Any = client.time()
    return int(answer[0]) + int(answer[1]) / 1e6


def list_live_workers(client: Redis, queue: str) -> list[str]:
    """List the machine names of a queue's live workers, one name per worker."""
    members: Any = client.zrangebyscore(WORKERS + queue, read_server_time(client) - ALIVE_SECONDS, "+inf")
    return [member.decode(errors="replace").rpartition("/")[0] for member in members]


def require_redis(settings: Settings) -> None:
    """Raise `ValueError` if the settings name no Redis."""
    if not settings.redis_url:
        raise ValueError("a worker takes its jobs from Redis: set LATHE_REDIS_URL (without it, the server runs them)")


def check_live_worker(settings: Settings, worker_class: WorkerClass) -> str:
    """Say how many live workers of a class this machine has. Raise `UnavailableError` if there is none.

    A worker is alive if it sent a heartbeat to Redis lately. If Redis is unreachable, the sentence says that the number
    is unknown. That is not an error, because workers wait for Redis and a running job continues meanwhile.

    Raises:
        ValueError: if no Redis is set.
        UnavailableError: if no worker is alive.
    """
    require_redis(settings)
    machine = socket.gethostname()
    with closing(connect(settings.redis_url, CHECK_SECONDS)) as client:
        try:
            count = list_live_workers(client, build_queue_name(worker_class)).count(machine)
        except redis_errors.RedisError as error:
            return f"{as_unavailable(error).message}; whether a worker is alive is unknown"
    if not count:
        raise UnavailableError(f"no worker of {machine} has sent a heartbeat for {ALIVE_SECONDS:.0f} s")
    return f"{machine} has workers: {count}"
