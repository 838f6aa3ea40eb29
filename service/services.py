"""The components of a server that request handlers use, built once per app."""

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
    """Components of a running server.

    Attributes:
        home_problem: why the state folder could not be written at startup; None if it could.
        watch: checks at intervals whether the state folder can be written.
        make_engine: builds an encoder's engine without starting it.
        processes: starts the processes of encoders and jobs.
        replica: local replica of what servers share in Redis; None for a single server.
        changing_encoders: held while an encoder is added or removed.
        closing: set when the server is asked to stop; endless responses then end.
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
        """Return all current problems that do not stop the service, as sentences for `/health`."""
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
        """Raise `UnavailableError` if the state folder could not be written at startup."""
        if self.home_problem:
            raise UnavailableError(self.home_problem, code="state_unwritable")

    @property
    def state_problem(self) -> str | None:
        """Why the state folder cannot be written, since startup or at the last check; None if it can."""
        return self.home_problem or self.watch.problem

    @property
    def indexes_open(self) -> bool:
        """Whether indexes can be stored: in the state folder, or in a backend that does not need it."""
        return self.home_problem is None or not self.indexes.needs_home

    def require_indexes_writable(self) -> None:
        """Raise `UnavailableError` if indexes are stored in the state folder and it could not be written at startup."""
        if self.indexes.needs_home:
            self.require_writable()


async def get_services(request: Request) -> Services:
    """Return the components of the request's app; a coroutine, since FastAPI runs plain functions in a thread."""
    services: Services = request.app.state.services
    return services


async def require_use(request: Request) -> None:
    """Raise `UnauthorizedError` unless the request may use the service."""
    (await get_services(request)).keys.require_use(request)


async def require_admin(request: Request) -> None:
    """Raise unless the request may administrate; see `Keys.require_admin`."""
    (await get_services(request)).keys.require_admin(request)


ServicesDep = Annotated[Services, Depends(get_services)]
USE = [Depends(require_use)]
ADMIN = [Depends(require_admin)]
