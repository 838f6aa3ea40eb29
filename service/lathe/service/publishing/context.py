"""The context in which commands and jobs publish: registries, settings, and what the provenance says."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lathe.service.chains.registry import Registry
from lathe.service.encoders.trained import TrainedEncoders
from lathe.service.home import Home
from lathe.service.registries import open_registry, open_trained
from lathe.service.settings import Settings
from lathe.service.waiting import wait_for_redis
from lathe.transforms.progress import Progress, part_of


@dataclass(frozen=True)
class PublishContext:
    """What a fit, a training or an adaptation needs besides its request and its encoders.

    Attributes:
        settings: settings of the process: state folder, device, folders of stored vectors.
        registry: registry of chains, to which a chain's version is added.
        trained: trained encoders, to which an encoder's version is added.
        command: the user's command, for the provenance.
        job: id of the job; one that runs twice publishes once.
        on_work_folder: called with the folder below which trainings write, before the first begins.
    """

    settings: Settings
    registry: Registry
    trained: TrainedEncoders
    command: str
    job: str | None = None
    on_work_folder: Callable[[Path], None] | None = None

    @classmethod
    def open(
        cls,
        settings: Settings,
        command: str,
        encoders: Iterable[str] | None = (),
        job: str | None = None,
        on_work_folder: Callable[[Path], None] | None = None,
        on_progress: Progress | None = None,
    ) -> Self:
        """Open the registries in the state folder, or in Redis if replicas share them, and return the context.

        Args:
            settings: settings of the process.
            command: the user's command, or the method and path of a job's request, for the provenance.
            encoders: names of the trained encoders to copy from Redis; None for all.
            job: id of the job.
            on_work_folder: called with the folder below which trainings write.
            on_progress: called while Redis is unreachable, which is then waited for, see `wait_for_redis`; None does
                not wait.

        Raises:
            UnavailableError: if Redis cannot be reached.
            ArtifactError: if a record in Redis cannot be read.
        """

        def open_registries() -> tuple[Registry, TrainedEncoders]:
            home, url = Home(settings.home), settings.redis_url
            return open_registry(home, url), open_trained(home, url, encoders)

        if on_progress is None:
            registry, trained = open_registries()
        else:
            registry, trained = wait_for_redis(open_registries, part_of(on_progress, 0.0, 0.0))
        return cls(settings, registry, trained, command, job, on_work_folder)

    @property
    def home(self) -> Home:
        """The state folder."""
        return Home(self.settings.home)
