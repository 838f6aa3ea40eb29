"""Opening of the registry of chains, of a state folder or shared by replicas in Redis."""

from lathe.service.chains.registry import Registry
from lathe.service.chains.size_routes import SizeRoutes
from lathe.service.chains.starters import STARTERS, install_starters
from lathe.service.home import Home


def open_registry(home: Home, redis_url: str = "") -> tuple[Registry, SizeRoutes]:
    """Open the registry and size routes of a state folder, and install the starter chains that ship with Lathe.

    With `redis_url`, open those shared in Redis instead, after copying them once to the state folder.

    Raises:
        UnavailableError: if Redis cannot be reached.
    """
    if not redis_url:
        return open_local_registry(home)
    from lathe.service.redis.replica import Replica

    replica = Replica.open(home, redis_url)
    replica.bring_up_to_date()
    return replica.registry, replica.size_routes


def open_local_registry(home: Home) -> tuple[Registry, SizeRoutes]:
    """Open the registry and size routes of a state folder, and install the starter chains.

    If the folder cannot be written and holds no chains, the starter chains are served from the installed package.
    """
    registry = Registry(home.chains)
    size_routes = SizeRoutes(home.size_routes, registry)
    try:
        install_starters(registry, size_routes)
    except OSError:
        if not registry.names():
            registry = Registry(STARTERS, shipped=True)
            size_routes = SizeRoutes(STARTERS / "places.json", registry)
    return registry, size_routes
