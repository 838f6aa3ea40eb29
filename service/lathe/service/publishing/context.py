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
        encoders: Iterable[str] | None,
        job: str | None = None,
        on_work_folder: Callable[[Path], None] | None = None,
    ) -> Self:
        """Open the registries in the state folder, or in Redis if replicas share them, and return the context.

        Args:
            settings: settings of the process.
            command: the user's command, for the provenance.
            encoders: names of the trained encoders to copy from Redis; None for all.
            job: id of the job.
            on_work_folder: called with the folder below which trainings write.

        Raises:
            UnavailableError: if Redis cannot be reached.
            ArtifactError: if a record in Redis cannot be read.
        """
        home = Home(settings.home)
        registry = open_registry(home, settings.redis_url)
        trained = open_trained(home, settings.redis_url, encoders)
        return cls(settings, registry, trained, command, job, on_work_folder)

    @property
    def home(self) -> Home:
        """The state folder."""
        return Home(self.settings.home)


def open_job_context(
    settings: Settings,
    command: str,
    folder: Path,
    on_progress: Progress,
    encoders: Iterable[str] = (),
    on_work_folder: Callable[[Path], None] | None = None,
) -> PublishContext:
    """Open the context of the job in a folder, and wait while Redis is unreachable, see `wait_for_redis`.

    Args:
        settings: settings of the process.
        command: method and path of the request, for the provenance.
        folder: folder of the job, whose name is its id.
        on_progress: called with progress in [0, 1] and a message.
        encoders: names of the trained encoders to copy from Redis.
        on_work_folder: called with the folder below which trainings write.
    """
    return wait_for_redis(
        lambda: PublishContext.open(settings, command, encoders, folder.name, on_work_folder),
        part_of(on_progress, 0.0, 0.0),
    )
