"""A job's record and files in Redis, checked when they are read.

lathe:job:<id>   hash:
    job          the job as submitted, JSON
    request      its parameters, JSON
    files        names of its inputs, JSON
    queue        name of its queue
    tries        number of times a worker took it
    worker       worker that has it
    now          the job as its process last wrote it, JSON
    cancel       present once a stop was requested
    result:<f>   bytes of a result file
    end          the job as it ended, JSON; written once

Files are inputs that came with the requests, and results.

lathe:job:<id>:<file>   list: the file's bytes, in pieces
lathe:results           hash: id of a job → bytes of its results
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from redis import Redis
from redis import exceptions as redis_errors
from redis.client import Pipeline

from lathe.service.jobs.job import INPUT_NAMES, MAX_JOBS, Job, ResultFile, is_job_id, parse_job
from lathe.service.jobs.requests import KINDS, InputName
from lathe.service.redis.connection import note_damage
from lathe.transforms.files import PIECE_BYTES

JOBS = "lathe:jobs"
RECORD = "lathe:job:"
FIELDS = ("job", "now", "end", "queue", "tries", "cancel")


@dataclass(frozen=True)
class JobRecord:
    """A job's record in Redis.

    Attributes:
        queue: queue that it waits in, or was taken from.
        tries: number of times a worker took it.
        cancelled: whether a stop was requested.
    """

    job: Job
    queue: str
    tries: int
    cancelled: bool

    @property
    def waiting(self) -> bool:
        """Whether the job is queued."""
        return self.job.state == "queued"


def parse_record(job_id: str, fields: Any, heartbeat: Any) -> JobRecord | None:
    """Parse a job's record from Redis, or return None without one. A damaged record becomes a failed job.

    Damage is counted, and logged once.

    Args:
        job_id: id of the job.
        fields: values of `FIELDS`, or the error raised in reading them.
        heartbeat: last heartbeat of its worker; None if no worker has it.
    """
    try:
        if isinstance(fields, Exception):
            raise ValueError("it is not a hash")
        return None if fields[0] is None else _parse_fields(job_id, fields, running=heartbeat is not None)
    except (ValueError, TypeError) as error:  # orjson's is a TypeError
        why = str(error)
    note_damage("job", job_id, why)
    job = Job(job_id, "unknown", "failed", message="failed", error=f"the job's record in Redis is damaged: {why}")
    return JobRecord(job, "", 0, cancelled=False)


def _parse_fields(job_id: str, fields: Sequence[bytes | None], running: bool) -> JobRecord:
    """Parse the values of a job's record, in the order of `FIELDS`, into the job's latest state.

    The job is as it ended, else, if it runs, as last written, else as submitted.

    Raises:
        ValueError: if the record is damaged, or its kind is unknown.
    """
    submitted, now, end, queue, tries, cancel = fields
    latest = now if running and now is not None else submitted
    content = latest if end is None else end
    job = parse_job(job_id, content or b"")
    if job.kind not in KINDS or job.ended != (end is not None):
        raise ValueError("its kind or state cannot be that of this job")
    return JobRecord(job, (queue or b"").decode(), int(tries or 0), cancel is not None)


def filter_job_ids(members: Iterable[bytes]) -> list[str]:
    """Decode the members of a Redis key, and return the valid job ids. Other members are counted as damage."""
    job_ids = []
    for member in members:
        if is_job_id(decode_id(member)):
            job_ids.append(decode_id(member))
        else:
            note_damage("job id", repr(member[:40]), "no job can have this id")
    return job_ids


def decode_id(member: bytes) -> str:
    """Decode bytes from Redis to text. Invalid UTF-8 is replaced."""
    return member.decode(errors="replace")


RESULTS = "lathe:results"
INPUTS: TypeAdapter[tuple[InputName, ...]] = TypeAdapter(tuple[InputName, ...])


@dataclass(frozen=True)
class FileLimits:
    """Limits on what Redis keeps of jobs.

    Attributes:
        jobs: number of ended jobs; the oldest are removed.
        result_bytes: bytes of one result; a larger one is not stored.
        results_bytes: bytes of all results; the oldest are removed.
    """

    jobs: int = MAX_JOBS
    result_bytes: int = 256 << 20
    results_bytes: int = 512 << 20


LIMITS = FileLimits()


class JobFiles:
    """The files of all jobs in Redis.

    Args:
        client: Redis client; its errors are not caught here.
    """

    def __init__(self, client: Redis, limits: FileLimits) -> None:
        self.client = client
        self.limits = limits

    def read_input_names(self, job_id: str) -> tuple[str, ...]:
        """Read the names of a job's input files. Raise `ValueError` if the record of the names is damaged.

        Raises:
            ValueError: if the record of the names is damaged.
        """
        content: Any = self.client.hget(RECORD + job_id, "files")
        return INPUTS.validate_json(content or b"")

    def read(self, job_id: str, name: str) -> ResultFile | None:
        """Return a job's file in Redis, whose pieces are read lazily, or None if there is no such file."""
        key = build_file_key(job_id, name)
        count = int(self.client.llen(key))
        if not count:
            return None
        size = (count - 1) * PIECE_BYTES + len(self._read_piece(key, -1))
        return ResultFile(size, (self._read_piece(key, index) for index in range(count)))

    def read_size(self, job_id: str, name: str) -> int:
        """Return the size in bytes of a job's result file, or 0 if there is no such file."""
        size: Any = self.client.hget(RECORD + job_id, f"result:{name}")
        return int(size or 0)

    def _read_piece(self, key: str, index: int) -> bytes:
        piece: Any = self.client.lindex(key, index)
        return piece or b""

    def store_results(self, job_id: str, paths: list[Path]) -> list[str]:
        """Store a job's result files, remove oldest results over the limit, and return names that were not stored.

        A file is not stored if it is too large, or if Redis is full.
        """
        refused = []
        for path in paths:
            size = path.stat().st_size
            if size > self.limits.result_bytes:
                refused.append(path.name)
                continue
            try:
                # The log of a training is stored again whenever it has grown.
                growth = size - self.read_size(job_id, path.name)
                with self.client.pipeline() as pipe:
                    write_file(pipe, job_id, path.name, ResultFile.from_file(path.open("rb")).pieces)
                    pipe.hset(RECORD + job_id, f"result:{path.name}", size)
                    pipe.hincrby(RESULTS, job_id, growth)
                    pipe.execute()
            except redis_errors.OutOfMemoryError:
                refused.append(path.name)
        self.enforce_limit()
        return refused

    def enforce_limit(self) -> None:
        """Remove the result files of the oldest jobs until all results are within the limit. One job's are always left.

        The records of the jobs stay.
        """
        stored_sizes: Any = self.client.hgetall(RESULTS)
        ids: Any = self.client.zrange(JOBS, 0, -1)
        sizes = {decode_id(job_id): int(size) for job_id, size in stored_sizes.items() if size.isdigit()}
        for job_id in [job_id for job_id in filter_job_ids(ids) if job_id in sizes]:
            if sum(sizes.values()) <= self.limits.results_bytes or len(sizes) == 1:
                return
            self.delete_results(job_id)
            del sizes[job_id]

    def delete_results(self, job_id: str) -> None:
        """Delete all result files of a job from Redis. The record of the job stays."""
        try:
            record: Any = self.client.hkeys(RECORD + job_id)
        except redis_errors.ResponseError:  # another type of value, which names no files
            record = []
        names = [decode_id(key).removeprefix("result:") for key in record if key.startswith(b"result:")]
        if names:
            self.client.delete(*(build_file_key(job_id, name) for name in names))
        self.client.hdel(RESULTS, job_id)


def write_file(pipe: Pipeline, job_id: str, name: str, content: Iterator[bytes]) -> None:
    """Add commands to a Redis pipeline that write a job's file in pieces, in place of an earlier file.

    An empty file gets one empty piece, so that it can be told from a missing file.
    """
    key, is_empty = build_file_key(job_id, name), True
    pipe.delete(key)
    for piece in content:
        pipe.rpush(key, piece)
        is_empty = False
    if is_empty:
        pipe.rpush(key, b"")


def build_input_keys(job_id: str) -> list[str]:
    """Return the Redis keys of all input files that a job may have."""
    return [build_file_key(job_id, name) for name in INPUT_NAMES]


def build_file_key(job_id: str, name: str) -> str:
    """Return the Redis key of a job's file."""
    return f"{RECORD}{job_id}:{name}"
