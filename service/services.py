"""Everything a request may need, built once for an app."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends
from starlette.requests import Request

from service.auth import Keys
from service.embedder import Embedder
from service.engine.engine import Engine
from service.errors import UnavailableError
from service.home import Home
from service.index.protocol import SearchIndexes
from service.jobs.jobs import Jobs
from service.live.drift import Drift
from service.live.shadows import Shadows
from service.places import Places
from service.processes.program import ProcessStarter
from service.registry import Registry
from service.settings import Settings
from service.state_watch import StateWatch
from training.encoder.spec import EncoderSpec

if TYPE_CHECKING:
    from service.shared.replica import Replica


@dataclass
class Services:
    """The parts of a running server.

    Attributes:
        make_engine: builds an encoder's engine, not yet started.
        processes: starts the processes of encoders and jobs.
        changing_encoders: held while one is added or taken out.
        home_problem: why the state folder could not be written at the start; None if it could.
        watch: looks whether that changes.
        replica: what this server shares with others; None for one alone.
        closing: set when the server was asked to stop; answers without an end then end.
    """

    settings: Settings
    home: Home
    home_problem: str | None
    watch: StateWatch
    keys: Keys
    registry: Registry
    places: Places
    embedder: Embedder
    indexes: SearchIndexes
    jobs: Jobs
    shadows: Shadows
    drift: Drift
    make_engine: Callable[[EncoderSpec], Engine]
    processes: ProcessStarter
    replica: "Replica | None" = None
    changing_encoders: Lock = field(default_factory=Lock)
    closing: Event = field(default_factory=Event)

    def warnings(self) -> list[str]:
        """What is wrong although the service goes on."""
        engines = self.embedder.engines.values()
        problems = [
            self.state_problem,
            self.watch.damage,
            *self.indexes.warnings(),
            *(engine.problem for engine in engines),
        ]
        shared = self.replica.warnings() if self.replica else []
        return [problem for problem in problems if problem] + shared + self.jobs.warnings() + self.drift.warnings()

    def require_writable(self) -> None:
        """Raise `UnavailableError` where the state folder cannot be written."""
        if self.home_problem:
            raise UnavailableError(self.home_problem, code="state_unwritable")

    @property
    def state_problem(self) -> str | None:
        """Why the state folder cannot be written: since the start, or as was last seen; None if it can."""
        return self.home_problem or self.watch.problem

    @property
    def indexes_open(self) -> bool:
        """Whether there is somewhere to keep indexes."""
        return self.home_problem is None or not self.indexes.needs_home

    def require_indexes_writable(self) -> None:
        """The same, where indexes are kept in it."""
        if self.indexes.needs_home:
            self.require_writable()


async def get_services(request: Request) -> Services:
    """The services of the app that got the request; a coroutine, for FastAPI sends plain functions to a thread."""
    services: Services = request.app.state.services
    return services


async def require_use(request: Request) -> None:
    """Let through who may use the service."""
    (await get_services(request)).keys.require_use(request)


async def require_admin(request: Request) -> None:
    """Let through who may administrate."""
    (await get_services(request)).keys.require_admin(request)


ServicesDep = Annotated[Services, Depends(get_services)]
USE = [Depends(require_use)]
ADMIN = [Depends(require_admin)]
