"""A job's record in Redis, checked when it is read.

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
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lathe.service.jobs.requests import KINDS
from lathe.service.jobs.store import Job, is_job_id, parse_job
from lathe.service.redis.damage import note_damage

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
    """Parse a job's fields read from Redis to a record. Return None if there are none, a failed job if damaged.

    Damage is counted and logged once.

    Args:
        job_id: id of the job.
        fields: values of `FIELDS`, or the error raised in reading them.
        heartbeat: last heartbeat of its worker; None if no worker has it.
    """
    try:
        return None if _is_missing(fields) else _parse_fields(job_id, fields, running=heartbeat is not None)
    except (ValueError, TypeError) as error:  # orjson's is a TypeError
        why = str(error)
    note_damage("job", job_id, why)
    job = Job(job_id, "unknown", "failed", message="failed", error=f"the job's record in Redis is damaged: {why}")
    return JobRecord(job, "", 0, cancelled=False)


def _is_missing(fields: Any) -> bool:
    if isinstance(fields, Exception):
        raise ValueError("it is no hash")
    return fields[0] is None


def _parse_fields(job_id: str, fields: Sequence[bytes | None], running: bool) -> JobRecord:
    """Parse the values of a job's record, in the order of `FIELDS`, to the record with the job's latest state.

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
    """Decode the members of a Redis key, and return those that are valid job ids.

    Other members are counted as damage and skipped.
    """
    job_ids = []
    for member in members:
        if is_job_id(decode_id(member)):
            job_ids.append(decode_id(member))
        else:
            note_damage("job id", repr(member[:40]), "no job can have this id")
    return job_ids


def decode_id(member: bytes) -> str:
    """Decode bytes from Redis to text, replacing invalid UTF-8."""
    return member.decode(errors="replace")
