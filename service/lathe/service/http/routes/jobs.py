"""Routes of jobs: their states, events and result files."""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from lathe.service.codec import NPY, dump_json
from lathe.service.errors import UnavailableError, UnknownNameError
from lathe.service.http.answers import answer_json, stream_file
from lathe.service.http.openapi import ERRORS, JobId
from lathe.service.http.routing import StrictRoute
from lathe.service.jobs.job import LOG, REPORT, VECTORS
from lathe.service.services import ADMIN, USE, Services, ServicesDep

router = APIRouter(route_class=StrictRoute, prefix="/jobs", tags=["jobs"], responses=ERRORS)

POLL_SECONDS = 0.25
"""Seconds between two checks of whether a job has changed."""
HEARTBEAT_POLLS = 40
"""Checks without a change after which a comment is sent, so that proxies keep the connection open."""
UNAVAILABLE_SECONDS = 2.0
"""Seconds between two attempts to read a job while Redis cannot be reached."""
REPORT_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
"""The page quotes names of a user's files: nothing in it may run."""


@router.get("", dependencies=USE)
async def list_jobs(services: ServicesDep) -> Response:
    """Return all jobs, newest first."""
    jobs = await run_in_threadpool(services.jobs.list)
    return await answer_json([job.to_json() for job in jobs])


@router.get("/{job_id}", dependencies=USE)
async def show_job(job_id: JobId, services: ServicesDep) -> Response:
    """Return a job, `{id, kind, state, progress, message, error, result, created_at, finished_at}`."""
    job = await run_in_threadpool(services.jobs.get, job_id)
    return await answer_json(job.to_json())


@router.delete("/{job_id}", dependencies=ADMIN)
async def cancel_job(job_id: JobId, services: ServicesDep) -> Response:
    """Cancel a job and return it. A job that has ended stays as it is."""
    services.require_writable()
    job = await run_in_threadpool(services.cancel_job, job_id)
    return await answer_json(job.to_json())


@router.get("/{job_id}/events", dependencies=USE)
async def job_events(job_id: JobId, services: ServicesDep) -> Response:
    """Stream the job each time it changes, as server-sent events, until it has ended."""
    await run_in_threadpool(services.jobs.get, job_id)  # 404 now, not inside the stream
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(_stream_events(services, job_id), media_type="text/event-stream", headers=headers)


@router.get("/{job_id}/vectors", dependencies=USE)
async def job_vectors(job_id: JobId, services: ServicesDep) -> Response:
    """Return the transformed vectors of a fit with `transform: true`, as a .npy file."""
    file = await run_in_threadpool(services.jobs.open_result, job_id, VECTORS)
    if file is None:
        raise UnknownNameError(f"the job {job_id} has no vectors; fit with transform: true to get them")
    return stream_file(file, NPY, {"content-disposition": f'attachment; filename="{job_id}.npy"'})


@router.get("/{job_id}/report", dependencies=USE)
async def job_report(job_id: JobId, services: ServicesDep) -> Response:
    """Return the report of a job of `POST /advise`, as HTML."""
    file = await run_in_threadpool(services.jobs.open_result, job_id, REPORT)
    if file is None:
        raise UnknownNameError(f"the job {job_id} has no report; jobs of POST /advise have one when they succeed")
    return stream_file(file, "text/html; charset=utf-8", REPORT_HEADERS)


@router.get("/{job_id}/log", dependencies=USE)
async def job_log(job_id: JobId, services: ServicesDep) -> Response:
    """Return the training log of a job of `POST /train` or `POST /adapt` so far, as JSON lines.

    A line has the step and the losses, or the metric of an evaluation. Of an adaptation, it is the log of the training
    that wrote last.
    """
    file = await run_in_threadpool(services.jobs.open_result, job_id, LOG)
    if file is None:
        raise UnknownNameError(
            f"the job {job_id} has no training log; jobs of POST /train and /adapt have one once they train"
        )
    return stream_file(file, "application/x-ndjson", {})


async def _stream_events(services: Services, job_id: str) -> AsyncIterator[bytes]:
    """Yield a server-sent event with a job's state each time the state changes, until the job has ended.

    It also ends when the job is deleted or the server stops. A comment is sent now and then between events. While Redis
    cannot be reached, the stream stays open.
    """
    last_event, unchanged_polls = b"", 0
    while not services.closing.is_set():
        try:
            job = await run_in_threadpool(services.jobs.get, job_id)
        except UnavailableError:
            yield b": waiting\n\n"
            await asyncio.sleep(UNAVAILABLE_SECONDS)
            continue
        except UnknownNameError:
            return
        event = b"data: " + dump_json(job.to_json()) + b"\n\n"
        if event != last_event:
            yield event
            last_event, unchanged_polls = event, 0
        elif unchanged_polls >= HEARTBEAT_POLLS:
            yield b": still here\n\n"
            unchanged_polls = 0
        if job.ended:
            return
        unchanged_polls += 1
        await asyncio.sleep(POLL_SECONDS)
