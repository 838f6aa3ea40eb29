"""The chains that ship with Lathe, put into a registry that does not know them."""

from contextlib import suppress
from pathlib import Path

from service.home import Home
from service.places import Places
from service.registry import Registry
from transforms.errors import ArtifactError

STARTERS = Path(__file__).parent / "starter_chains"
"""A registry of its own: <name>/1/, fitted by `make starters`."""


def open_registry(home: Home, redis_url: str = "") -> tuple[Registry, Places]:
    """The chains of a state folder, or those that replicas share, with the starters put in.

    Raises:
        UnavailableError: for a Redis that cannot be reached.
    """
    if not redis_url:
        return open_folder(home)
    from service.shared.replica import Replica

    replica = Replica.open(home, redis_url)
    replica.bring_up_to_date()
    return replica.registry, replica.places


def open_folder(home: Home) -> tuple[Registry, Places]:
    """The chains of a state folder.

    Where that cannot be written and holds no chains, the starters are read from where they ship.
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
    """Add each starter chain as the first version of its name, unless that name was ever used.

    In a copy of what replicas share they are put into the copy alone; a new Redis gets them from there. Where the file
    of places is damaged they take none: the server starts, and its health says so.

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
