"""Opening of the registry of chains, of a state folder or shared by replicas in Redis."""

from lathe.service.chains.registry import Registry
from lathe.service.chains.starters import STARTERS, install_starters
from lathe.service.home import Home


def open_registry(home: Home, redis_url: str = "") -> Registry:
    """Open the registry of a state folder, and install the starter chains that ship with Lathe.

    With `redis_url`, open the one shared in Redis instead, after copying it once to the state folder. If the folder
    cannot be written and holds no chains, the starter chains are served from the installed package.

    Raises:
        UnavailableError: if Redis cannot be reached.
    """
    if redis_url:
        from lathe.service.redis.replica import Replica

        replica = Replica.open(home, redis_url)
        replica.bring_up_to_date()
        return replica.registry
    registry = Registry(home.chains)
    try:
        install_starters(registry)
    except OSError:
        if not registry.names():
            return Registry(STARTERS, shipped=True)
    return registry
