"""Jobs in Redis: their records, and the queues that workers take jobs from.

    add ──► waiting (lathe:queue:<queue>) ──take──► running (lathe:running) ──end──► ended (in the record, once)
                      ▲                                   │
                      └── give back: no heartbeat of its worker for LOST_SECONDS, or its process was killed

Until it has ended, a job is either in a queue or running, and moves between them in a single script. Times are of
Redis's clock, so the clocks of machines need not agree. A job's end is written once: a second writer, for instance a
worker that was considered dead, changes nothing.

All that is read here is data, checked when it is read (see `lathe.service.jobs.redis.record`); none of it names code.
"""

import builtins
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, Literal

from redis import Redis
from redis import exceptions as redis_errors

from lathe.service.errors import UnknownNameError
from lathe.service.jobs.redis.heartbeats import describe_missing_worker, list_live_workers, read_server_time
from lathe.service.jobs.redis.record import (
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
    split_pieces,
    write_file,
)
from lathe.service.jobs.store import Job, is_job_id
from lathe.service.redis.connection import is_wrong_type, note_damage

QUEUE = "lathe:queue:"
RUNNING = "lathe:running"
WAITING_SECONDS = 7 * 24 * 3600
"""Maximum seconds that a job waits for a worker. Its inputs do not expire: a full Redis would evict them first."""
TRIES = 2
"""Number of times a job is taken by a worker before it is given up."""
LOST_SECONDS = 8.0
"""Seconds without a heartbeat after which a worker is considered dead, and its job is queued again."""

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


class JobRecords:
    """The jobs of all replicas, as records in Redis.

    Args:
        client: Redis client; its errors are not caught here.
    """

    def __init__(self, client: Redis, limits: FileLimits = LIMITS) -> None:
        self.client = client
        self.limits = limits
        self.files = JobFiles(client, limits)
        self._take = client.register_script(TAKE)
        self._give_back = client.register_script(GIVE_BACK)

    # What a server does

    def add(self, job: Job, queue: str, request: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Write a new job with its request and input files to Redis and append it to a queue, in one transaction."""
        fields = json.dumps(asdict(job)), json.dumps(request), json.dumps(list(files))
        with self.client.pipeline() as pipe:
            pipe.hset(RECORD + job.id, mapping=dict(zip(("job", "request", "files"), fields, strict=True)))
            pipe.hset(RECORD + job.id, "queue", queue)
            for name, content in files.items():
                write_file(pipe, job.id, name, split_pieces(content))
            pipe.zadd(JOBS, {job.id: read_server_time(self.client)})
            pipe.lrem(QUEUE + queue, 0, job.id)  # the client may send all this twice
            pipe.rpush(QUEUE + queue, job.id)
            pipe.execute()

    def list_ids(self) -> builtins.list[str]:
        """Return the ids of all jobs, newest first.

        Invalid ids are skipped.
        """
        members: Any = self.client.zrevrange(JOBS, 0, -1)
        return filter_job_ids(members)

    def _find_all(self, ids: Iterable[str]) -> builtins.list[JobRecord]:
        """Return the records of the jobs with these ids. Ids without a record are skipped."""
        job_ids = list(ids)
        with self.client.pipeline(transaction=True) as pipe:
            for job_id in job_ids:
                pipe.hmget(RECORD + job_id, FIELDS)
                pipe.zscore(RUNNING, job_id)
            replies = pipe.execute(raise_on_error=False)
        # Two replies for each job: its fields, and its worker's last heartbeat.
        records = (parse_record(*row) for row in zip(job_ids, replies[::2], replies[1::2], strict=True))
        return [record for record in records if record is not None]

    def find(self, job_id: str) -> JobRecord:
        """Return the record of a job (its state, queue and number of tries).

        Raises:
            UnknownNameError: if there is no such job.
        """
        records = self._find_all([job_id]) if is_job_id(job_id) else []
        if not records:
            raise UnknownNameError(f"there is no job {job_id!r}", param="id")
        return records[0]

    def get(self, job_id: str) -> Job:
        """Return a job in its current state.

        The message of a waiting job says what it waits for.

        Raises:
            UnknownNameError: if there is no such job.
        """
        return self._describe_waiting(self.find(job_id))

    def list(self) -> builtins.list[Job]:
        """Return all jobs, newest first, with a message that says what each waiting job waits for."""
        records = self._find_all(self.list_ids())
        workers = {name: self.has_workers(name) for name in {record.queue for record in records if record.waiting}}
        return [self._describe_waiting(record, workers.get(record.queue)) for record in records]

    def _describe_waiting(self, record: JobRecord, has_workers: bool | None = None) -> Job:
        """Return the job of a record. If it waits, its message says what for, such as a worker.

        Args:
            record: the record.
            has_workers: whether its queue has workers; None to ask Redis.
        """
        if not record.waiting:
            return record.job
        if record.tries:
            return replace(record.job, message="its worker was lost; waiting for another")
        if has_workers or (has_workers is None and self.has_workers(record.queue)):
            return replace(record.job, message="waiting")
        return replace(record.job, message=f"waiting: {describe_missing_worker(record.queue)}")

    def has_workers(self, queue: str) -> bool:
        """Return whether a queue has workers.

        The result is True for a state folder's own queue, whose worker the server starts.
        """
        return ":" in queue or bool(list_live_workers(self.client, queue))

    def read_request(self, job_id: str) -> bytes:
        """Return a job's request as the JSON that was written, or empty bytes if the job has no record."""
        content: Any = self.client.hget(RECORD + job_id, "request")
        return content or b""

    def count_waiting(self, queue: str) -> int:
        """Return the number of jobs in a queue."""
        count: Any = self.client.llen(QUEUE + queue)
        return int(count)

    def cancel(self, job_id: str) -> Job:
        """Cancel a job: a waiting one ends now, a running one is stopped later by its worker. Return the job.

        A job that has ended is returned unchanged.

        Raises:
            UnknownNameError: if there is no such job.
        """
        record = self.find(job_id)
        if record.job.ended:
            return record.job
        # Noted first: a worker that takes the job in this moment finds it cancelled.
        self.client.hset(RECORD + job_id, "cancel", 1)
        if self.client.lrem(QUEUE + record.queue, 0, job_id):
            return self.end(_build_lost_job(record.job, cancelled=True))
        return record.job

    # What a worker does

    def take(self, queue: str, worker: str) -> Job | None:
        """Take the next job of a queue for a worker and mark it as running. Return None if there is none to run.

        A job that was cancelled or has no tries left is ended instead. A job that has ended or has no record is
        dropped.

        Returns:
            The job. None if the queue is empty, or if the next job cannot run.
        """
        taken: Any = self._take(keys=[QUEUE + queue, RUNNING])
        if taken is None:
            return None
        for job_id in filter_job_ids([taken]):
            for record in self._find_all([job_id]):
                if not record.job.ended and not self._end_if_cancelled_or_out_of_tries(record):
                    job = replace(record.job, state="running", message="starting")
                    now = json.dumps(asdict(job)), str(record.tries + 1), worker
                    self.client.hset(RECORD + job_id, mapping=dict(zip(("now", "tries", "worker"), now, strict=True)))
                    return job
        self.client.zrem(RUNNING, taken)
        return None

    def record_job_heartbeat(self, job_id: str, worker: str) -> Literal["goes on", "cancelled", "lost"]:
        """Record that a worker still runs a job. Return "goes on", or "cancelled" or "lost" if it must stop.

        A job is lost to a worker if it is not running any more, or another worker has it. Nothing is recorded for a job
        that was cancelled or lost.
        """
        with self.client.pipeline(transaction=False) as pipe:
            pipe.hmget(RECORD + job_id, "worker", "cancel")
            pipe.zscore(RUNNING, job_id)
            fields, heard = pipe.execute(raise_on_error=False)
        if isinstance(fields, Exception) or fields[0] != worker.encode() or heard is None:
            return "lost"
        if fields[1] is not None:
            return "cancelled"
        # `xx` updates only: a job that has just ended must not become a running one again.
        self.client.zadd(RUNNING, {job_id: read_server_time(self.client)}, xx=True)
        return "goes on"

    def write_progress(self, job: Job) -> None:
        """Write the state and progress of a running job, unless its record is gone.

        A record that this created anew, after Redis lost its data, would be in no list, and stay for ever.
        """
        if self.client.hexists(RECORD + job.id, "job"):
            self.client.hset(RECORD + job.id, "now", json.dumps(asdict(job)))

    def end(self, job: Job) -> Job:
        """Write how a job ended, unless that is written already, and remove its inputs. Return the job as stored.

        Returns:
            The job as recorded. A job without a record is returned unchanged, and nothing is written.
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

    def release(self, job_id: str, worker: str, counts: bool = True) -> None:
        """Queue a job again if its worker's process is over and it has not ended. Does nothing if another has it.

        A job that was cancelled or has no tries left is ended instead.

        Args:
            job_id: id of the job.
            worker: the worker that had it.
            counts: whether this was one of its tries; not if the worker was asked to stop.
        """
        if self.record_job_heartbeat(job_id, worker) != "lost":
            if not counts:
                self.client.hincrby(RECORD + job_id, "tries", -1)
            self._requeue([job_id], silent_since=math.inf)

    # What both do

    def requeue_lost_jobs(self) -> None:
        """Put running jobs whose workers sent no heartbeat for `LOST_SECONDS` back in their queues.

        A job without tries left is ended instead. Invalid ids are removed.
        """
        # Heartbeats and this are of Redis's clock, so that clocks of machines may differ.
        silent_since = read_server_time(self.client) - LOST_SECONDS
        members: Any = self.client.zrangebyscore(RUNNING, "-inf", silent_since)
        if members:
            job_ids = filter_job_ids(members)
            self._requeue(job_ids, silent_since)
            if len(job_ids) < len(members):
                self.client.zrem(RUNNING, *(member for member in members if not is_job_id(decode_id(member))))

    def _requeue(self, ids: Collection[str], silent_since: float) -> None:
        """Put running jobs back in their queues. Jobs that were cancelled or have no tries left are ended instead.

        Jobs that have ended, or have no record, are removed from the running ones.

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
                    note_damage("queue", record.queue, "it is no list")

    def _end_if_cancelled_or_out_of_tries(self, record: JobRecord) -> bool:
        if not record.cancelled and record.tries < TRIES:
            return False
        self.end(_build_lost_job(record.job, record.cancelled))
        return True

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
                self.end(_build_failed_job(record.job, "no worker took the job for a week"))
        self._end_stranded(waiting)

    def _end_stranded(self, records: Collection[JobRecord]) -> None:
        """End jobs that Redis lost, which are neither in a queue nor running, as cancelled or failed.

        They end as cancelled if that was requested. If a queue cannot be read, nothing is ended.
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
                self.end(
                    _build_lost_job(record.job, cancelled=True)
                    if record.cancelled
                    else _build_failed_job(record.job, error)
                )

    def _delete(self, job_id: str) -> None:
        self.files.delete_results(job_id)
        self.files.delete_inputs(job_id)
        self.client.delete(RECORD + job_id)
        self.client.zrem(JOBS, job_id)


def _build_lost_job(job: Job, cancelled: bool) -> Job:
    if not cancelled:
        return _build_failed_job(
            job, f"the job's process was killed or crashed {TRIES} times, last while {job.message}"
        )
    return replace(job, state="cancelled", message="cancelled", finished_at=datetime.now(UTC).isoformat())


def _build_failed_job(job: Job, error: str) -> Job:
    ended_at = datetime.now(UTC).isoformat()
    return replace(job, state="failed", message="its workers were lost", error=error, finished_at=ended_at)
