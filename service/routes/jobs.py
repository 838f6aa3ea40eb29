"""Jobs: what they do, how far they are, what they made."""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from service.advise_job import REPORT
from service.answers import ERRORS, json_answer
from service.codec import NPY, dump_json
from service.errors import UnavailableError, UnknownNameError
from service.jobs.jobs import ResultFile
from service.services import ADMIN, USE, Services, ServicesDep

router = APIRouter(prefix="/jobs", tags=["jobs"], responses=ERRORS)

POLL_SECONDS = 0.25
REPORT_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
"""The page quotes names of a user's files: nothing in it may run."""
HEARTBEAT_POLLS = 40
AWAY_SECONDS = 2.0


@router.get("", dependencies=USE)
async def list_jobs(services: ServicesDep) -> Response:
    """All jobs, newest first."""
    jobs = await run_in_threadpool(services.jobs.list)
    return await json_answer([job.public() for job in jobs])


@router.get("/{job_id}", dependencies=USE)
async def show_job(job_id: str, services: ServicesDep) -> Response:
    """`{id, kind, state, progress, message, error, result, created_at, finished_at}`."""
    job = await run_in_threadpool(services.jobs.get, job_id)
    return await json_answer(job.public())


@router.delete("/{job_id}", dependencies=ADMIN)
async def cancel_job(job_id: str, services: ServicesDep) -> Response:
    """Stop a job; one that has ended stays as it is."""
    services.require_writable()
    job = await run_in_threadpool(services.jobs.cancel, job_id)
    return await json_answer(job.public())


@router.get("/{job_id}/events", dependencies=USE)
async def job_events(job_id: str, services: ServicesDep) -> Response:
    """The job each time it changes, as server-sent events, until it has ended."""
    await run_in_threadpool(services.jobs.get, job_id)  # 404 now, not inside the stream
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(events(services, job_id), media_type="text/event-stream", headers=headers)


@router.get("/{job_id}/vectors", dependencies=USE)
async def job_vectors(job_id: str, services: ServicesDep) -> Response:
    """The vectors of a fit that was asked to transform its source, as .npy."""
    found = await run_in_threadpool(services.jobs.result, job_id, "vectors.npy")
    if found is None:
        raise UnknownNameError(f"the job {job_id} has no vectors; fit with transform: true to get them")
    return file_answer(found, NPY, {"content-disposition": f'attachment; filename="{job_id}.npy"'})


@router.get("/{job_id}/report", dependencies=USE)
async def job_report(job_id: str, services: ServicesDep) -> Response:
    """The page of an advice, as HTML."""
    found = await run_in_threadpool(services.jobs.result, job_id, REPORT)
    if found is None:
        raise UnknownNameError(f"the job {job_id} has no report; jobs of POST /advise have one when they succeed")
    return file_answer(found, "text/html; charset=utf-8", REPORT_HEADERS)


def file_answer(found: ResultFile, media_type: str, headers: dict[str, str]) -> Response:
    """A file that a job made, in pieces."""
    return StreamingResponse(found.pieces, 200, {"content-length": str(found.size)} | headers, media_type)


async def events(services: Services, job_id: str) -> AsyncIterator[bytes]:
    """Server-sent events of one job, until it or the server ends; clients connect again by themselves."""
    last, quiet = b"", 0
    while not services.closing.is_set():
        try:
            job = await run_in_threadpool(services.jobs.get, job_id)
        except UnavailableError:  # Redis is away; the stream outlives that
            yield b": waiting\n\n"
            await asyncio.sleep(AWAY_SECONDS)
            continue
        except UnknownNameError:  # removed meanwhile
            return
        event = b"data: " + dump_json(job.public()) + b"\n\n"
        if event != last:
            yield event
            last, quiet = event, 0
        elif quiet >= HEARTBEAT_POLLS:
            yield b": still here\n\n"
            quiet = 0
        if job.ended:
            return
        quiet += 1
        await asyncio.sleep(POLL_SECONDS)
