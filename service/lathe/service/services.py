"""The components of a server that its routes use, built once per app."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends
from starlette.requests import Request

from lathe.service.auth import Keys
from lathe.service.chains.registry import Registry
from lathe.service.encoders.embedder import Embedder
from lathe.service.encoders.engine.engine import Engine
from lathe.service.encoders.trained import TrainedEncoders
from lathe.service.encoders.trained_serving import Residency, TrainedServing
from lathe.service.errors import BadValueError, UnavailableError
from lathe.service.home import Home
from lathe.service.index.protocol import SearchIndexes
from lathe.service.jobs.job import Job, JobQueue
from lathe.service.jobs.kinds.reindex import ReindexJob
from lathe.service.jobs.requests import parse_request
from lathe.service.jobs.runner import JobThread
from lathe.service.monitoring.drift import Drift
from lathe.service.monitoring.state_monitor import StateMonitor
from lathe.service.processes.program import ProcessStarter
from lathe.service.settings import Settings
from lathe.training.encoder.spec import EncoderSpec

if TYPE_CHECKING:
    from lathe.service.redis.replica import Replica

CANCEL_SECONDS = 5.0
"""Maximum seconds that a cancelled job may take to end before the request is answered."""


@dataclass
class Services:
    """Components of a running server.

    Attributes:
        home_problem: why the state folder could not be written at startup; None if it could.
        replica: local replica of what servers share in Redis; None for a single server.
        trained: versions of trained encoders.
        trained_serving: starts and stops the engines of trained encoders.
        submitting_reindex: held while a reindexing job is submitted, so that an index has at most one.
        closing: set when the server is asked to stop; endless responses then end.
    """

    settings: Settings
    home: Home
    home_problem: str | None
    state_monitor: StateMonitor
    keys: Keys
    registry: Registry
    embedder: Embedder
    indexes: SearchIndexes
    jobs: JobQueue
    job_thread: JobThread
    drift: Drift
    make_engine: Callable[[EncoderSpec], Engine]
    processes: ProcessStarter
    residency: Residency
    trained: TrainedEncoders
    trained_serving: TrainedServing
    replica: "Replica | None" = None
    submitting_reindex: Lock = field(default_factory=Lock)
    closing: Event = field(default_factory=Event)

    def list_warnings(self) -> list[str]:
        """Return a sentence on each current problem that does not stop the service, for `/health`."""
        engines = self.embedder.engines.values()
        engine_problems = [engine.problem or engine.find_warning() for engine in engines]
        engine_problems += [engine.info.warning for engine in engines if engine.info is not None]
        problems = [self.state_problem, self.state_monitor.damage, *self.indexes.warnings(), *engine_problems]
        problems += [self.residency.find_problem(), self.state_monitor.unexpected.message]
        problems.append(self.trained_serving.unexpected.message)
        if self.embedder.live_vectors is not None:
            problems.append(self.embedder.live_vectors.unexpected.message)
        shared = self.replica.warnings() if self.replica else []
        jobs = self.job_thread.warnings() + self.jobs.warnings()
        return [problem for problem in problems if problem] + shared + jobs + self.drift.warnings()

    def describe_encoders(self) -> list[dict[str, Any]]:
        """Return a dict for each served encoder: name, model, state, and its problem if there is one.

        Once an encoder was ready, also its properties, its number of ready workers, and the chains that answer requests
        for fewer dimensions: `size_routes` by number of dimensions, and `nested` for the numbers that have none.
        """
        size_routes = self.registry.size_routes.read()
        descriptions = []
        for engine in self.embedder.engines.values():
            description: dict[str, Any] = {"name": engine.spec.name, "model": engine.spec.model, "state": engine.state}
            description["idle_seconds"] = engine.options.unload_seconds
            if engine.info is not None:
                # A copy, as `nested` is taken out of it.
                own_routes = dict(size_routes.get(engine.info.fingerprint, {}))
                description |= engine.info.describe() | {
                    "workers": len(engine.ready_dispatchers),
                    "nested": own_routes.pop("nested", None),
                    "size_routes": own_routes,
                }
            problem = engine.problem or engine.find_warning()
            descriptions.append(description | ({"problem": problem} if problem else {}))
        return descriptions

    def require_writable(self) -> None:
        """Raise `UnavailableError` if the state folder could not be written at startup."""
        if self.home_problem:
            raise UnavailableError(self.home_problem, code="state_unwritable")

    @property
    def state_problem(self) -> str | None:
        """Why the state folder cannot be written, since startup or at the last check, or None if it can be."""
        return self.home_problem or self.state_monitor.problem

    @property
    def indexes_open(self) -> bool:
        """Whether indexes can be stored: in the state folder, or in a backend that does not need it."""
        return self.home_problem is None or not self.indexes.capabilities.in_state_folder

    def list_reindex_jobs(self, index: str) -> dict[str, ReindexJob]:
        """Return the requests of the queued and running jobs that reindex an index, by job id. Log damaged requests."""
        requests = {}
        for job in self.jobs.list():
            if job.kind != "reindex" or job.ended:
                continue
            try:
                request = parse_request(job.kind, self.jobs.read_request(job.id))
            except BadValueError as error:
                self.jobs.report_damaged_request(job.id, str(error))
                continue
            if isinstance(request, ReindexJob) and request.index == index:
                requests[job.id] = request
        return requests

    def cancel_job(self, job_id: str) -> Job:
        """Cancel a job, wait up to 5 s until its process has ended, and return the job as it is then.

        An ended job stays unchanged.

        Raises:
            UnknownNameError: if there is no such job.
        """
        job = self.jobs.cancel(job_id)
        deadline = time.monotonic() + CANCEL_SECONDS
        while not job.ended and time.monotonic() < deadline:
            time.sleep(0.05)
            job = self.jobs.get(job_id)
        return job

    def require_indexes_writable(self) -> None:
        """Raise `UnavailableError` if indexes are stored in the state folder and it could not be written at startup."""
        if self.indexes.capabilities.in_state_folder:
            self.require_writable()


async def _get_services(request: Request) -> Services:
    """Return the components of the request's app.

    This is a coroutine, as FastAPI would run a plain function in a thread.
    """
    services: Services = request.app.state.services
    return services


def _check_key(require: Callable[[Keys, Request], None]) -> list[Any]:
    """Return the dependencies of a route whose requests need a kind of key."""

    async def check(request: Request) -> None:
        require((await _get_services(request)).keys, request)

    return [Depends(check)]


ServicesDep = Annotated[Services, Depends(_get_services)]
USE, WRITE, ADMIN = map(_check_key, (Keys.require_use, Keys.require_write, Keys.require_admin))
