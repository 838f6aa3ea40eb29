"""Opening of the registries of chains and of trained encoders, of a state folder or shared by replicas in Redis."""

from collections.abc import Iterable

from lathe.service.chains.registry import STARTERS, Registry, install_starters
from lathe.service.encoders.trained import TrainedEncoders
from lathe.service.home import Home


def open_registry(home: Home, redis_url: str = "") -> Registry:
    """Return the registry of chains of transforms in the state folder, or in Redis if `redis_url` is set.

    The starter chains that ship with Lathe are installed. If the folder cannot be written and holds no chains, the
    starter chains are served from the installed package.

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
    """Return the registry of trained encoders in the state folder, or in Redis if `redis_url` is set.

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
