"""Health checks, metrics, and the description of the server."""

from contextlib import suppress
from importlib.metadata import version
from threading import Lock
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from lathe.service.build_info import read_commit
from lathe.service.encoders.engine.engine import SERVING
from lathe.service.encoders.engine.metrics import ENCODER_PROCESSES, MODEL_BYTES, WAITING_TEXTS, WAITING_TOKENS
from lathe.service.errors import UnavailableError, error_body
from lathe.service.http.answers import answer_json, build_json_response
from lathe.service.http.openapi import ERRORS
from lathe.service.monitoring.drift import update_drift_gauges
from lathe.service.services import Services, ServicesDep

router = APIRouter(tags=["health"])

JOBS = Gauge("lathe_jobs", "Jobs there are a record of", ["kind", "state"])
INDEXES = Gauge("lathe_indexes", "Indexes that are open, open and damaged, or cannot be opened", ["state"])
INDEX_RECALL = Gauge(
    "lathe_index_recall", "Recall@10 of an index's canaries, and with a cause what that loses", ["index", "cause"]
)
INDEX_FAULTS = Gauge("lathe_index_faulty_rows", "Share of an index's rows that have a fault", ["index", "fault"])
STATE_WRITABLE = Gauge("lathe_state_writable", "1 if the state folder could be written when last tried, else 0")
MEASURING = Lock()
"""Held while gauges are cleared and set, so that no other request reads them in between."""


@router.get("/health/live")
@router.head("/health/live", include_in_schema=False)
async def live() -> Response:
    """Answer 200 with `{"status": "live"}` while the process runs."""
    return build_json_response({"status": "live"}, {})


@router.head("/health", include_in_schema=False)
@router.head("/health/ready", include_in_schema=False)
@router.get("/health", responses=ERRORS)
@router.get("/health/ready", responses=ERRORS)
async def ready(services: ServicesDep) -> Response:
    """Answer 200 once the encoders of the settings are ready and the indexes opened, else 503.

    The answer has all warnings. An encoder that was unloaded because nobody used it counts as ready. One behind an
    embeddings API that does not answer is a warning: the server answers for its stored texts, and for other encoders.
    """
    engines = services.embedder.engines

    states = {name: engine.state for name, engine in engines.items()}
    configured = {spec.name for spec in services.settings.loaded_specs}  # not those an admin adds while others serve
    settled = {name for name, engine in engines.items() if engine.spec.upstream is not None and engine.settled.is_set()}
    opened = services.indexes.ready.is_set() or not services.indexes_open
    is_ready = opened and all(states[name] in SERVING for name in states.keys() & (configured - settled))

    content: dict[str, Any] = {"status": "ready" if is_ready else "not ready", "encoders": states}
    content["warnings"] = services.list_warnings()
    if not is_ready:
        reason = "indexes are being opened" if not opened else "an encoder is not ready"
        content |= error_body(UnavailableError(reason, code="not_ready"))
    return await answer_json(content, 200 if is_ready else 503)


@router.get("/info", responses=ERRORS)
async def info(services: ServicesDep) -> Response:
    """Return a description of the server: text-embeddings-inference's fields, and the encoders and chains."""
    return await answer_json(await run_in_threadpool(_describe_server, services))


@router.get("/metrics", responses={200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}})
async def metrics(services: ServicesDep) -> Response:
    """Return the metrics in Prometheus's text format."""
    return Response(await run_in_threadpool(_collect_metrics, services), media_type=CONTENT_TYPE_LATEST)


def _collect_metrics(services: Services) -> bytes:
    with MEASURING:
        for gauge in (WAITING_TEXTS, WAITING_TOKENS, ENCODER_PROCESSES, MODEL_BYTES, JOBS, INDEX_RECALL, INDEX_FAULTS):
            gauge.clear()  # encoders and states that are gone
        for name, engine in services.embedder.engines.items():
            WAITING_TEXTS.labels(name).set(engine.queue.texts)
            WAITING_TOKENS.labels(name).set(engine.queue.tokens)
            if engine.spec.upstream is None:
                ENCODER_PROCESSES.labels(name).set(len(engine.ready_dispatchers))
                MODEL_BYTES.labels(name).set(engine.model_bytes if engine.ready_dispatchers else 0)
        STATE_WRITABLE.set(services.state_problem is None)
        for state, count in services.indexes.count_states().items():
            INDEXES.labels(state).set(count)
        for name, quality in services.indexes.measure_quality().items():
            if quality.losses:
                INDEX_RECALL.labels(name, "").set(1 - sum(quality.losses.values()))
            for cause, loss in quality.losses.items():
                INDEX_RECALL.labels(name, cause).set(loss)
            for fault, share in quality.faults.items():
                INDEX_FAULTS.labels(name, fault).set(share)
        update_drift_gauges(services.drift)
        with suppress(UnavailableError):  # Redis cannot be reached, which another metric shows
            for job in services.jobs.list():
                JOBS.labels(job.kind, job.state).inc()
        return generate_latest()


def _describe_server(services: Services) -> dict[str, Any]:
    """Return the content of `/info`: default encoder, limits, encoders, chains, and numbers of workers.

    The default encoder and the limits are in text-embeddings-inference's fields.
    """
    settings, engine, workers = services.settings, services.embedder.default, services.jobs.workers
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
        "auto_truncate": engine.spec.long_text != "error",
        "version": version("lathe-service"),
        "sha": read_commit(),
        "encoders": services.describe_encoders(),
        "chains": [
            {"name": name, "live": services.registry.live(name), "versions": services.registry.versions(name)}
            for name in services.registry.names()
        ],
        "job_workers": None if workers is None else workers["jobs"],
        "training_workers": None if workers is None else workers["trainings"],
        "redis": services.replica.describe() if services.replica else None,
    }
