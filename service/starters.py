"""Starter chains: the chains that ship with Lathe, and their installation in a registry."""

from contextlib import suppress
from pathlib import Path

from service.home import Home
from service.places import Places
from service.registry import Registry
from transforms.errors import ArtifactError

STARTERS = Path(__file__).parent / "starter_chains"
"""Folder of the registry of starter chains, `<name>/1/`, fitted by `make starters`."""


def open_registry(home: Home, redis_url: str = "") -> tuple[Registry, Places]:
    """Open the registry and size routes of a state folder, or of Redis, and install the starter chains.

    Raises:
        UnavailableError: if Redis cannot be reached.
    """
    if not redis_url:
        return open_folder(home)
    from service.shared.replica import Replica

    replica = Replica.open(home, redis_url)
    replica.bring_up_to_date()
    return replica.registry, replica.places


def open_folder(home: Home) -> tuple[Registry, Places]:
    """Open the registry and size routes of a state folder, and install the starter chains.

    If the folder cannot be written and holds no chains, the starter chains are served from the installed package.
    """
    registry = Registry(home.chains)
    places = Places(home.places, registry)
    try:
        install_starters(registry, places)
    except OSError:
        if not registry.names():
            registry = Registry(STARTERS, shipped=True)
            places = Places(STARTERS / "places.json", registry)
    return registry, places


def install_starters(registry: Registry, places: Places) -> None:
    """Copy each starter chain to the registry unless its name was ever used, and assign it free size routes.

    In a local replica of a Redis the chains are copied to the replica only; a new Redis gets them from there. If the
    file of size routes is damaged, no routes are assigned: the server starts, and its health reports it.

    Raises:
        OSError: if the registry cannot be written.
    """
    shipped = Registry(STARTERS, shipped=True)
    installed = [name for name in shipped.names() if registry.install(name, shipped)]
    for encoder, named in Places(STARTERS / "places.json", shipped).read().items():
        for place, name in named.items():
            if name in installed:
                with suppress(ArtifactError):
                    places.assign(encoder, place, name, replace=False)
