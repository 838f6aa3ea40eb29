"""A job's record in Redis, checked where it is read.

lathe:job:<id>   hash:
    job          as it was submitted, JSON
    request      what it is asked to do, JSON
    files        names of its inputs, JSON
    queue        it waits in
    tries        so far
    worker       that has it
    now          as its process last wrote it, JSON
    cancel       there once somebody asked to stop it
    result:<f>   bytes of a file it made
    end          how it ended, JSON; written once
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from service.jobs.requests import KINDS
from service.jobs.store import Job, is_job_id, parse_job
from service.shared.damage import note_damage

JOBS = "lathe:jobs"
RECORD = "lathe:job:"
FIELDS = ("job", "now", "end", "queue", "tries", "cancel")


@dataclass(frozen=True)
class JobRecord:
    """A job as Redis has it.

    Attributes:
        job: as it is now.
        queue: that it waits in, or was taken from.
        tries: how often it was taken.
        cancelled: whether somebody asked to stop it.
    """

    job: Job
    queue: str
    tries: int
    cancelled: bool

    @property
    def waiting(self) -> bool:
        """Whether no worker has it."""
        return self.job.state == "queued"


def parse_record(job_id: str, fields: Any, heard: Any) -> JobRecord | None:
    """Return a job's record; a damaged one is that of a failed job; None if there is none.

    Args:
        job_id: of the job.
        fields: the values of `FIELDS`, or the error in their place.
        heard: when its worker was heard of last; None if none has it.
    """
    try:
        return None if is_missing(fields) else read(job_id, fields, running=heard is not None)
    except (ValueError, TypeError) as error:  # orjson's is a TypeError
        why = str(error)
    note_damage("job", job_id, why)
    job = Job(job_id, "unknown", "failed", message="failed", error=f"the job's record in Redis is damaged: {why}")
    return JobRecord(job, "", 0, cancelled=False)


def is_missing(fields: Any) -> bool:
    """Return whether there is no record; raise `ValueError` if something else is in its place."""
    if isinstance(fields, Exception):
        raise ValueError("it is no hash")
    return fields[0] is None


def read(job_id: str, fields: Sequence[bytes | None], running: bool) -> JobRecord:
    """Return a record.

    Raises:
        ValueError: if it is damaged.
    """
    submitted, now, end, queue, tries, cancel = fields
    content = end if end is not None else now if running and now is not None else submitted
    job = parse_job(job_id, content or b"")
    if job.kind not in KINDS or job.ended != (end is not None):
        raise ValueError("its kind or state cannot be that of this job")
    return JobRecord(job, (queue or b"").decode(), int(tries or 0), cancel is not None)


def job_ids(members: Iterable[bytes]) -> list[str]:
    """Return the ids among what a key of Redis holds; what cannot be one is skipped."""
    found = []
    for member in members:
        if is_job_id(as_id(member)):
            found.append(as_id(member))
        else:
            note_damage("job id", repr(member[:40]), "no job can have this id")
    return found


def as_id(member: bytes) -> str:
    """Return bytes of Redis as text, whatever they are."""
    return member.decode(errors="replace")
