"""The HTTP application."""

import logging
import sqlite3
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

from service.answers import json_answer
from service.auth import Keys
from service.cache import VectorCache
from service.cors import allow_origins
from service.embedder import Embedder
from service.engine.engine import Engine
from service.engine.process import WorkerProcess
from service.engine.waiting import WaitingRoom
from service.errors import RequestError, ServiceError, WrongShapeError, as_service_error, error_body
from service.home import Home
from service.http.body_memory import BodyMemoryMiddleware
from service.http.origins import OriginMiddleware
from service.index.backend import open_indexes
from service.jobs.jobs import Jobs
from service.jobs.local import LocalJobs
from service.jobs.store import JobStore
from service.live.drift import Drift
from service.live.drift_refit import Refits
from service.live.shadows import Shadows
from service.live.tap import Tap
from service.middleware import RequestMiddleware
from service.processes.client import process_starter
from service.processes.program import ProcessStarter, environment_without_keys
from service.routes import (
    advice,
    api_pages,
    chains,
    dashboard,
    drift,
    embed,
    encoders,
    fits,
    health,
    indexes,
    jobs,
    reduce,
    search,
    shadow,
)
from service.services import Services
from service.settings import Settings
from service.shedding import SheddingMiddleware
from service.starters import open_registry
from service.state_watch import StateWatch
from service.targets import Targets
from service.tracing import instrument
from training.encoder.spec import EncoderSpec
from training.errors import TrainingError
from transforms.errors import TransformError

if TYPE_CHECKING:
    from service.shared.replica import Replica

ROUTERS = [
    embed.router,
    reduce.router,
    fits.router,
    advice.router,
    jobs.router,
    shadow.router,  # before the chains: its paths are more particular than theirs
    drift.router,
    chains.router,
    encoders.router,
    indexes.router,
    search.router,
    health.router,
    dashboard.router,
    api_pages.router,
]


log = logging.getLogger(__name__)


def create_app(settings: Settings, processes: ProcessStarter | None = None) -> FastAPI:
    """Build the app of one server; its lifespan loads the encoders and starts the threads.

    Args:
        settings: of the server.
        processes: starts the processes of encoders and jobs, and is closed with the app; None selects one by device.

    Raises:
        ValueError: if the server would be reachable by others without keys being required, a setting needs a package
            that is not installed, or others can write to the state folder.
    """
    settings.require_safe()
    services = build_services(settings, processes or process_starter(settings.device))
    app = FastAPIOffline(
        title="Lathe",
        version=version("lathe"),
        description="Compact, debiased text embeddings: fitted, versioned, measured.",
        lifespan=lifespan_of(services),
        docs_url=None,  # `api_pages` serves these
        redoc_url=None,
    )
    app.state.services = services
    for router in ROUTERS:
        app.include_router(router)
    for error_type in (ServiceError, TransformError, TrainingError, OSError, sqlite3.Error):
        app.add_exception_handler(error_type, answer_error)
    app.add_exception_handler(RequestValidationError, answer_validation_error)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_middleware(BodyMemoryMiddleware, limit=settings.body_memory, parsing=settings.parse_memory)
    app.add_middleware(SheddingMiddleware, embedder=services.embedder)
    app.add_middleware(OriginMiddleware, settings=settings)
    app.add_middleware(RequestMiddleware)
    if settings.tracing:
        instrument(app)
    if settings.cors_origins:
        allow_origins(app, settings.cors_origins)  # around all else, so that pages can read every error
    return app


def build_services(settings: Settings, processes: ProcessStarter) -> Services:
    """Build the components of a server without starting them.

    Creates the state folder and restricts its permissions. If the folder cannot be written, the server runs without
    what needs it: chains are read from where they are, or as shipped; fits and administration answer 503.

    Raises:
        ValueError: if others can write to the state folder.
    """
    home = Home(settings.home)
    problem = home.open()
    home.tighten()
    for caution in home.cautions():
        log.warning(caution)
    replica = open_replica(settings, home) if settings.redis_url and problem is None else None
    registry, places = (replica.registry, replica.places) if replica else open_registry(home)
    admin_keys = settings.admin_keys
    if not admin_keys and problem is None:
        admin_keys = (home.read_or_make_admin_key(),)
    make_engine = partial(build_engine, settings, processes)
    engines = [make_engine(spec) for spec in settings.loaded_specs]
    cache = VectorCache(settings.cache_bytes, behind=replica.cache if replica else None)
    embedder = Embedder(engines, registry, Targets(registry, places), cache, Tap())
    jobs = open_jobs(settings, home, replica, processes)
    return Services(
        settings=settings,
        home=home,
        home_problem=problem,
        watch=StateWatch(home, problem, places),
        keys=Keys(settings.api_keys, admin_keys),
        registry=registry,
        places=places,
        embedder=embedder,
        indexes=open_indexes(settings, home, embedder.encode_for_index),
        jobs=jobs,
        shadows=Shadows(registry, embedder.tap),
        drift=open_drift(settings, embedder, jobs if problem is None else None),
        make_engine=make_engine,
        processes=processes,
        replica=replica,
    )


def open_drift(settings: Settings, embedder: Embedder, jobs: Jobs | None) -> Drift:
    """Build the drift monitor and attach it to live traffic if drift is on; without `jobs` it refits no chain."""
    refits = None
    if settings.drift and settings.drift_refit and jobs is not None:
        refits = Refits(embedder.registry, jobs, embedder.spec_of, settings.drift_window)
    watched = settings.drift, settings.drift_window, settings.drift_threshold
    found = Drift(*watched, embedder.registry, embedder.tap.soon, refits)
    if settings.drift:
        embedder.tap.watch(found.watch, at_once=True)
    return found


def open_replica(settings: Settings, home: Home) -> "Replica":
    """Open the local replica of what servers share in Redis; raise `ValueError` if the `redis` package is missing."""
    settings.require_redis_extra()
    from service.shared.replica import Replica

    return Replica.open(home, settings.redis_url, settings.redis_cache_bytes, settings.redis_cache_seconds)


def open_jobs(settings: Settings, home: Home, replica: "Replica | None", processes: ProcessStarter) -> Jobs:
    """Return the job manager: jobs of this server on disk, or with a replica those of all replicas in Redis."""
    environment = job_environment(settings)
    if replica is None:
        return LocalJobs(JobStore(home.jobs), environment, processes)
    from service.jobs.shared import SharedJobs

    return SharedJobs(replica.link, home, environment, processes)


def build_engine(settings: Settings, processes: ProcessStarter, spec: EncoderSpec) -> Engine:
    """Build the engine of one encoder with its admission queue, without starting its worker processes."""
    return Engine(
        spec,
        partial(WorkerProcess, options=settings.worker_options, processes=processes),
        WaitingRoom(settings.max_queued_texts, settings.max_queued_tokens),
        workers=settings.worker_processes,
        ahead=2 if settings.on_gpu else 1,
        timeout=settings.worker_seconds,
    )


def job_environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables of a job's process: those of this process without keys, and some settings."""
    told = {"LATHE_HOME": str(settings.home), "LATHE_JOB_THREADS": str(settings.job_threads)}
    told["LATHE_REDIS_URL"] = settings.redis_url
    if settings.device:
        told["LATHE_DEVICE"] = settings.device
    return environment_without_keys() | told


def lifespan_of(services: Services) -> Callable[[FastAPI], Any]:
    """Return the lifespan that starts engines, replica, jobs and indexes, and at shutdown stops them in order."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        """Start all background components, yield while the app serves, then stop them."""
        services.embedder.tap.start()
        for engine in services.embedder.engines.values():
            engine.start()
        if services.replica is not None:
            await run_in_threadpool(services.replica.start)
        if services.home_problem is None:
            services.watch.start()
            services.jobs.start()
        if services.indexes_open:
            services.indexes.start()
        yield
        services.watch.stop()
        await run_in_threadpool(services.jobs.stop)
        if services.replica is not None:
            await run_in_threadpool(services.replica.stop)
        await run_in_threadpool(services.indexes.close)
        for engine in list(services.embedder.engines.values()):
            await run_in_threadpool(engine.stop, services.settings.shutdown_seconds)
        await run_in_threadpool(services.embedder.tap.stop)
        await run_in_threadpool(services.processes.close)

    return lifespan


async def answer_error(_request: Request, error: Exception) -> Response:
    """Return the JSON error response for an exception, with `retry-after` and, for 401, `www-authenticate`."""
    service_error = as_service_error(error)
    headers = {"retry-after": str(service_error.retry_after)} if service_error.retry_after else {}
    if service_error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return await json_answer(error_body(service_error), service_error.status, headers)


async def answer_validation_error(request: Request, error: Exception) -> Response:
    """Return the 422 response for path or query parameters of the wrong type."""
    details = error.errors() if isinstance(error, RequestValidationError) else []
    message = "; ".join(f"{'.'.join(map(str, d['loc']))}: {d['msg']}" for d in details)
    return await answer_error(request, WrongShapeError(message))


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Return the JSON error response for an unknown route (404) or a method it does not allow (405)."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    found = RequestError(f"{request.method} {request.url.path}: {getattr(error, 'detail', '')}", code="no_route")
    found.status = status
    found.type = "not_found_error" if status == 404 else found.type
    found.code = "method_not_allowed" if status == 405 else found.code
    answer = await answer_error(request, found)
    answer.headers.update(getattr(error, "headers", None) or {})
    return answer
