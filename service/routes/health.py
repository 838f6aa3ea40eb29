"""Whether the service lives, is ready, and what it is."""

from contextlib import suppress
from importlib.metadata import version
from threading import Lock
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from service.answers import ERRORS, json_answer
from service.engine.metrics import ENCODER_PROCESSES, WAITING_TEXTS, WAITING_TOKENS
from service.errors import UnavailableError, error_body
from service.live.drift_metrics import observe
from service.routes.encoders import describe_encoders
from service.services import Services, ServicesDep

router = APIRouter(tags=["health"])

JOBS = Gauge("lathe_jobs", "Jobs there are a record of", ["kind", "state"])
INDEXES = Gauge("lathe_indexes", "Indexes that are open, open and damaged, or cannot be opened", ["state"])
STATE_WRITABLE = Gauge("lathe_state_writable", "1 if the state folder could be written when last tried, else 0")
MEASURING = Lock()


@router.get("/health/live")
@router.head("/health/live", include_in_schema=False)
async def live() -> Response:
    """200 while the process answers."""
    return await json_answer({"status": "live"})


@router.head("/health", include_in_schema=False)
@router.head("/health/ready", include_in_schema=False)
@router.get("/health", responses=ERRORS)
@router.get("/health/ready", responses=ERRORS)
async def ready(services: ServicesDep) -> Response:
    """200 once every encoder is warm and every index that can be is open, else 503; with what is wrong."""
    engines = services.embedder.engines
    states = {name: engine.state for name, engine in engines.items()}
    awaited = {spec.name for spec in services.settings.loaded_specs}  # not those an admin adds while others serve
    opened = services.indexes.ready.is_set() or not services.indexes_open
    is_ready = opened and all(state == "ready" for name, state in states.items() if name in awaited)
    content: dict[str, Any] = {"status": "ready" if is_ready else "not ready", "encoders": states}
    content["warnings"] = services.warnings()
    if not is_ready:
        waiting = "indexes are being opened" if not opened else "an encoder is not ready"
        content |= error_body(UnavailableError(waiting, code="not_ready"))
    return await json_answer(content, 200 if is_ready else 503)


@router.get("/info", responses=ERRORS)
async def info(services: ServicesDep) -> Response:
    """text-embeddings-inference's fields, and the encoders and chains."""
    return await json_answer(await run_in_threadpool(describe, services))


@router.get("/metrics", responses={200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}})
async def metrics(services: ServicesDep) -> Response:
    """Prometheus's text format."""
    return Response(await run_in_threadpool(measured, services), media_type=CONTENT_TYPE_LATEST)


def measured(services: Services) -> bytes:
    """What was counted, and what is the case now."""
    with MEASURING:
        for gauge in (WAITING_TEXTS, WAITING_TOKENS, ENCODER_PROCESSES, JOBS):
            gauge.clear()  # encoders and states that are no more
        for name, engine in services.embedder.engines.items():
            WAITING_TEXTS.labels(name).set(engine.room.texts)
            WAITING_TOKENS.labels(name).set(engine.room.tokens)
            ENCODER_PROCESSES.labels(name).set(len(engine.ready_lanes))
        STATE_WRITABLE.set(services.state_problem is None)
        for state, count in services.indexes.states().items():
            INDEXES.labels(state).set(count)
        observe(services.drift)
        with suppress(UnavailableError):  # Redis is gone, which has a measure of its own
            for job in services.jobs.list():
                JOBS.labels(job.kind, job.state).inc()
        services.shadows.measure()
        return generate_latest()


def describe(services: Services) -> dict[str, Any]:
    """What `/info` says."""
    settings, engine = services.settings, services.embedder.default
    encoder = engine.info
    return {
        "model_id": engine.spec.model,
        "model_sha": engine.spec.revision,
        "model_dtype": encoder.spec.dtype if encoder else engine.spec.dtype,
        "model_type": {"embedding": {"pooling": engine.spec.pooling or "model"}},
        "max_concurrent_requests": settings.max_queued_texts,
        "max_input_length": encoder.max_length if encoder else None,
        "max_batch_tokens": encoder.batch_tokens if encoder else settings.max_batch_tokens,
        "max_client_batch_size": settings.max_texts,
        "max_body_bytes": settings.max_body_bytes,
        "auto_truncate": True,
        "version": version("lathe"),
        "encoders": describe_encoders(services),
        "chains": [
            {"name": name, "live": services.registry.live(name), "versions": services.registry.versions(name)}
            for name in services.registry.names()
        ],
        "job_workers": services.jobs.workers,
        "redis": services.replica.describe() if services.replica else None,
    }
