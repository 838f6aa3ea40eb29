"""The HTTP application: its components, routes, middleware and lifespan."""

import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.auth import Keys
from lathe.service.encoders.cache import VectorCache
from lathe.service.encoders.embedder import Embedder
from lathe.service.encoders.engine.admission_queue import AdmissionQueue
from lathe.service.encoders.engine.dispatcher import EngineOptions, WorkerOptions, WorkerProcess
from lathe.service.encoders.engine.engine import Engine
from lathe.service.encoders.engine.upstream_worker import UpstreamConnection
from lathe.service.encoders.trained import TrainedEncoders
from lathe.service.encoders.trained_serving import Residency, TrainedServing
from lathe.service.errors import ServiceError, UnavailableError, WrongShapeError, convert_error, error_body
from lathe.service.home import Home
from lathe.service.http.answers import answer_json
from lathe.service.http.middleware import RequestMiddleware, RootPathMiddleware, SheddingMiddleware, check_root_path
from lathe.service.http.origins import OriginMiddleware, allow_origins
from lathe.service.http.request_body import BodyMemoryMiddleware
from lathe.service.http.routes import (
    chains,
    dashboard,
    embed,
    encoders,
    health,
    indexes,
    jobs,
    new_jobs,
    reduce,
    search,
)
from lathe.service.index.backend import open_indexes
from lathe.service.index.encoding import encode_for_index
from lathe.service.jobs.folder import FolderQueue
from lathe.service.jobs.job import JobQueue
from lathe.service.jobs.runner import POLL_SECONDS, JobRunner, JobThread, OwnWorker, build_job_environment
from lathe.service.monitoring.drift import Drift
from lathe.service.monitoring.state_monitor import StateMonitor
from lathe.service.processes.client import create_process_starter
from lathe.service.processes.program import ProcessStarter
from lathe.service.publishing.context import open_registry
from lathe.service.services import Services
from lathe.service.settings import Settings, list_unknown_variables
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import TrainingError
from lathe.transforms.errors import TransformError

if TYPE_CHECKING:
    from lathe.service.redis.replica import Replica

ROUTERS = [
    embed.router,
    search.router,
    reduce.router,
    health.router,
    embed.models_router,
    new_jobs.router,
    jobs.router,
    chains.router,
    encoders.router,
    indexes.router,
    dashboard.router,
]
"""Routers in the order in which a request is compared with their routes, those that take the least time first."""

UPSTREAM_CHECK_SECONDS = 5.0
"""Seconds after which an idle worker of an embeddings API looks again; there is no process that may have ended."""

SHARED_POLL_SECONDS = 1.0
"""Seconds between two checks of the jobs in Redis, which workers run."""

log = logging.getLogger(__name__)


def create_app(settings: Settings, processes: ProcessStarter | None = None) -> FastAPI:
    """Return the FastAPI app of one server. Its lifespan starts the encoders and threads.

    Args:
        settings: settings of the server.
        processes: starts the processes of encoders and jobs, and is closed with the app; None selects one by device.

    Raises:
        ValueError: if requests need an admin key and there is none, a setting needs a package that is not installed, a
            route begins as the root path does, or others can write to the state folder.
    """
    services = _build_services(settings, processes or create_process_starter(settings.device))
    app = FastAPIOffline(
        title="Lathe",
        version=version("lathe-service"),
        description="Compact, debiased text embeddings: fitted, versioned, measured.",
        lifespan=_build_lifespan(services),
        telemetry={"logs": False, "metrics": False},  # exceptions may quote texts, and /metrics has its own figures
    )
    app.state.services = services

    # FastAPI would compare a request with all routes of an included router, and twice with those of the one that fits.
    app.router.routes[:0] = [route for router in ROUTERS for route in router.routes]
    for error_type in (ServiceError, TransformError, TrainingError, OSError, sqlite3.Error):
        app.add_exception_handler(error_type, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)

    # The middleware that is added last runs first.
    app.add_middleware(BodyMemoryMiddleware, limit=settings.body_memory, parse_limit=settings.parse_memory)
    app.add_middleware(SheddingMiddleware, embedder=services.embedder)
    app.add_middleware(OriginMiddleware, settings=settings)
    app.add_middleware(RequestMiddleware)
    if settings.cors_origins:
        allow_origins(app, settings.cors_origins)  # around the middleware above, so that pages can read every error
    if settings.root_path:
        routes = [getattr(route, "path", "/") for router in ROUTERS for route in router.routes]
        check_root_path(settings.root_path, routes)
        app.add_middleware(RootPathMiddleware, root_path=settings.root_path)
    return app


def _build_services(settings: Settings, processes: ProcessStarter) -> Services:
    """Return the components of a server (registry, encoders, indexes, jobs), none of which is started.

    The state folder is created, its permissions are restricted, and an admin key is generated if none is set. If the
    folder cannot be written, the server serves the chains in it, or those shipped with Lathe, and fits and
    administration answer 503.

    Raises:
        ValueError: if others can write to the state folder, a setting needs a package that is not installed, or
            requests need an admin key and there is none.
    """
    home = Home(settings.home)
    problem = home.open()
    home.restrict_permissions()
    for warning in home.list_warnings():
        log.warning(warning)
    if unknown := list_unknown_variables():
        log.warning(f"nothing reads the environment variables {', '.join(unknown)}")

    replica = _open_replica(settings, home) if settings.redis_url and problem is None else None
    registry = replica.registry if replica else open_registry(home)
    keys = Keys(
        settings.api_keys, _find_admin_keys(settings, home, problem), settings.needs_key, settings.read_only_keys
    )

    residency = Residency(lambda: embedder.engines.values(), settings.model_bytes)
    make_engine = partial(_build_engine, settings, processes, residency.make_room)
    engines = [make_engine(spec) for spec in settings.loaded_specs]
    cache = VectorCache(settings.cache_bytes, second_level=replica.cache if replica else None)
    embedder = Embedder(engines, registry, cache)
    jobs, job_thread = _open_jobs(settings, home, replica, processes)
    indexes = open_indexes(settings, home, partial(encode_for_index, embedder))

    def list_index_encoders() -> list[str] | None:
        if not indexes.ready.is_set():
            return None
        try:
            described = indexes.describe()
        except UnavailableError:  # the backend of the indexes is away, or its client is not installed
            return None
        return [encoder for index in described if (encoder := index.get("encoder"))]

    return Services(
        settings=settings,
        home=home,
        home_problem=problem,
        state_monitor=StateMonitor(home, problem, registry.size_routes),
        keys=keys,
        registry=registry,
        embedder=embedder,
        indexes=indexes,
        jobs=jobs,
        job_thread=job_thread,
        drift=_open_drift(settings, embedder),
        make_engine=make_engine,
        residency=residency,
        trained=replica.trained if replica else TrainedEncoders(home.trained),
        trained_serving=TrainedServing(
            settings, embedder, make_engine, list_index_encoders, threading.Lock(), residency.start
        ),
        processes=processes,
        replica=replica,
    )


def _find_admin_keys(settings: Settings, home: Home, problem: str | None) -> tuple[str, ...]:
    """Return the admin keys of the settings, or else the one in the state folder, which is generated if it is missing.

    Args:
        settings: settings of the server.
        home: state folder.
        problem: why the state folder cannot be written; None if it can.

    Returns:
        The keys; none if none are set, the state folder has none, and none can be written to it.

    Raises:
        ValueError: if there are none and every request needs one.
    """
    if settings.admin_keys:
        return settings.admin_keys
    if problem is None or home.admin_key.is_file():
        return (home.read_or_create_admin_key(),)
    if settings.admin_key_only:
        raise ValueError(
            f"other machines can reach {settings.host}, no API keys are set, and no admin key can be generated because "
            f"{problem}: {home.root}; set LATHE_API_KEYS or LATHE_API_KEYS_FILE, set LATHE_HOME to a folder that can "
            "be written, or set LATHE_PUBLIC_WITHOUT_KEYS=true if anyone may use it"
        )
    return ()


def _open_drift(settings: Settings, embedder: Embedder) -> Drift:
    measured = settings.drift, settings.drift_window, settings.drift_threshold
    drift = Drift(*measured, embedder.registry, embedder.live_vectors.submit)
    if settings.drift:
        embedder.live_vectors.observer = drift.observe
    return drift


def _open_replica(settings: Settings, home: Home) -> "Replica":
    settings.require_redis_extra()
    from lathe.service.redis.replica import Replica

    return Replica(home, settings.redis_url, settings.redis_cache_bytes, settings.redis_cache_seconds)


def _open_jobs(
    settings: Settings, home: Home, replica: "Replica | None", processes: ProcessStarter
) -> tuple[JobQueue, JobThread]:
    """Return the queue of jobs and the thread that manages it.

    The thread itself runs jobs of the state folder; workers run jobs in Redis.
    """
    environment = build_job_environment(settings)
    if replica is None:
        queue = FolderQueue(home.jobs)
        # Fits do not wait for a training, which takes long.
        fits, trainings = (JobRunner(queue, name, environment, processes) for name in ("jobs", "trainings"))
        return queue, JobThread([fits.step, trainings.step], POLL_SECONDS)
    from lathe.service.jobs.redis_queue import RedisQueue

    shared = RedisQueue(replica.connection, home)
    return shared, JobThread([shared.maintain, OwnWorker(shared, environment, processes).step], SHARED_POLL_SECONDS)


def _build_engine(
    settings: Settings, processes: ProcessStarter, make_room: Callable[[Engine], None], spec: EncoderSpec
) -> Engine:
    """Return the engine of one encoder with its admission queue. Its workers are not started.

    An encoder behind an embeddings API has a worker for each call at once, and no process.

    Args:
        settings: settings of the server.
        processes: starts the encoder's processes.
        make_room: called with an engine before it loads its model.
        spec: spec of the encoder.
    """
    queue = AdmissionQueue(settings.max_queued_texts, settings.max_queued_tokens)
    if spec.upstream is not None:
        connection = UpstreamConnection(spec, settings.vector_stores.upstream)
        options = EngineOptions(
            workers=spec.upstream.concurrency,
            check_seconds=UPSTREAM_CHECK_SECONDS,
            max_texts=spec.upstream.batch_size,
        )
        return Engine(spec, connection.start_worker, queue, options, find_warning=connection.find_warning)
    options = EngineOptions(
        workers=settings.worker_processes,
        ahead=2 if settings.on_gpu else 1,
        timeout=settings.worker_seconds,
        unload_seconds=settings.find_idle_seconds(spec.name),
        hold=settings.idle_requests == "hold",
    )
    worker_options = WorkerOptions(
        settings.device, settings.worker_threads, settings.max_batch_tokens, settings.worker_seconds
    )
    start_worker = partial(WorkerProcess, options=worker_options, processes=processes)
    return Engine(spec, start_worker, queue, options, make_room=make_room)


def _build_lifespan(services: Services) -> Callable[[FastAPI], Any]:
    """Return the app's lifespan, which starts the server's threads and encoders and stops them at shutdown.

    These are engines, local replica, jobs and indexes, which are stopped in order. What needs the state folder is not
    started if the folder cannot be written.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        services.embedder.live_vectors.start()
        for engine in services.embedder.engines.values():
            engine.start()
        services.residency.start()
        await run_in_threadpool(services.trained_serving.start)
        if services.replica is not None:
            await run_in_threadpool(services.replica.start)
        if services.home_problem is None:
            services.state_monitor.start()
            services.job_thread.start()
        if services.indexes_open:
            services.indexes.start()
        yield
        services.state_monitor.stop()
        services.residency.stop()
        await run_in_threadpool(services.trained_serving.stop)
        await run_in_threadpool(services.job_thread.stop)
        if services.replica is not None:
            await run_in_threadpool(services.replica.stop)
        await run_in_threadpool(services.indexes.close)
        for engine in list(services.embedder.engines.values()):
            await run_in_threadpool(engine.stop, services.settings.shutdown_seconds)
        await run_in_threadpool(services.embedder.live_vectors.stop)
        # Last, as it kills the processes that are not lasting.
        await run_in_threadpool(services.processes.close)

    return lifespan


async def _answer_error(_request: Request, error: Exception) -> Response:
    service_error = convert_error(error)
    headers = {"retry-after": str(service_error.retry_after)} if service_error.retry_after else {}
    if service_error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return await answer_json(error_body(service_error), service_error.status, headers)


async def _answer_validation_error(request: Request, error: Exception) -> Response:
    details = error.errors() if isinstance(error, RequestValidationError) else []
    message = "; ".join(f"{'.'.join(map(str, d['loc']))}: {d['msg']}" for d in details)
    return await _answer_error(request, WrongShapeError(message))


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """Return this service's JSON response for an HTTP error of the framework, such as 404.

    A 404 for a path that resembles a route suggests that route.
    """
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = f"{request.method} {request.url.path}: {getattr(error, 'detail', '')}"
    if status == 404 and (meant := _suggest_route(request.url.path)):
        message += f"; did you mean {meant}?"
    code = None if status == 405 else "no_route"
    response = await _answer_error(request, ServiceError(message, code=code, status=status))
    response.headers.update(getattr(error, "headers", None) or {})
    return response


def _suggest_route(path: str) -> str | None:
    """Return a route whose last part is that of a path, as a suggestion for the client, or None if there is none.

    Routes with parameters are not suggested.
    """
    last_part = path.rstrip("/").rpartition("/")[2]
    routes = [getattr(route, "path", "") for router in ROUTERS for route in router.routes]
    return next((route for route in routes if last_part and "{" not in route and route.endswith(f"/{last_part}")), None)
