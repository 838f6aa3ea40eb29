"""Starter chains: the chains that ship with Lathe, and their installation in a registry."""

from contextlib import suppress
from pathlib import Path

from lathe.service.chains.registry import Registry
from lathe.transforms.errors import ArtifactError

STARTERS = Path(__file__).parent / "starter_chains"
"""Folder of the registry of starter chains, `<name>/1/`, fitted by `make starters`."""


def install_starters(registry: Registry) -> None:
    """Copy the chains that ship with Lathe to a registry, except those whose name was ever used there.

    The copied chains also get the size routes listed in a file beside the starter chains, where these routes are free.
    In a local replica of a Redis the chains are copied to the replica only. A new Redis gets them from there. If the
    registry's file of size routes is damaged, no routes are assigned: the server starts, and its health reports it.

    Raises:
        OSError: if the registry cannot be written.
    """
    shipped = Registry(STARTERS, shipped=True)
    installed = [name for name in shipped.names() if registry.install(name, shipped)]
    for encoder, named in shipped.size_routes.read().items():
        for route, name in named.items():
            if name in installed:
                with suppress(ArtifactError):
                    registry.size_routes.assign(encoder, route, name, replace=False)
