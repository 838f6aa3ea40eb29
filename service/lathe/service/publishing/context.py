"""The registries, of a state folder or shared in Redis, and the context in which commands and jobs publish."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lathe.service.chains.registry import STARTERS, Registry, install_starters
from lathe.service.encoders.trained import TrainedEncoders
from lathe.service.home import Home
from lathe.service.settings import Settings
from lathe.service.waiting import wait_for_redis
from lathe.transforms.progress import Progress, part_of


def open_registry(home: Home, redis_url: str = "") -> Registry:
    """Open the registry of chains in the state folder, or in Redis with `redis_url`, and install the starter chains.

    If the folder cannot be written and holds no chains, the starter chains are served from the installed package.

    Args:
        home: the state folder.
        redis_url: URL of the Redis that replicas share; if it is set, the registry in Redis is opened instead, after
            copying it once to the state folder.

    Raises:
        UnavailableError: if Redis cannot be reached.
    """
    if redis_url:
        from lathe.service.redis.replica import Replica

        replica = Replica(home, redis_url)
        replica.bring_up_to_date()
        return replica.registry
    registry = Registry(home.chains)
    try:
        install_starters(registry)
    except OSError:
        # With chains of its own the folder is served as it is, even if it cannot be written.
        if not registry.names():
            return Registry(STARTERS, shipped=True)
    return registry


def open_trained(home: Home, redis_url: str = "", names: Iterable[str] | None = None) -> TrainedEncoders:
    """Open the registry of trained encoders in the state folder, or in Redis with `redis_url` after copying from there.

    Args:
        home: the state folder.
        redis_url: URL of the Redis that replicas share; if it is set, the trained encoders in Redis are opened instead,
            after copying them to the state folder.
        names: names of the encoders to copy; None for all.

    Raises:
        UnavailableError: if Redis cannot be reached.
        ArtifactError: if a record in Redis cannot be read.
    """
    if not redis_url:
        return TrainedEncoders(home.trained)
    from lathe.service.redis.connection import RedisConnection
    from lathe.service.redis.registry import SharedTrainedEncoders

    trained = SharedTrainedEncoders(home.shared_trained, RedisConnection(redis_url))
    trained.join_and_push()
    for name in trained.list_all_names() if names is None else names:
        trained.pull(name)
    return trained


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
        """Open the registries in the state folder, or in Redis if replicas share them, as a context for publishing.

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
