"""What uses a version of a chain: size routes and indexes. It is not deleted without a flag that says so."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lathe.service.chains.registry import Registry
from lathe.service.errors import ConflictError


def list_uses(registry: Registry, name: str, version: int, indexes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the size routes that lead to a version, and the indexes that were made with it, in words.

    A column of a PostgreSQL table that `lathe pgvector` filled is not known here.

    Args:
        registry: registry that has the chain.
        name: name of the chain.
        version: version of the chain.
        indexes: descriptions of all indexes, as `GET /indexes` answers them.
    """
    refs = {f"{name}@{version}", *([name] if registry.live(name) == version else [])}
    for encoder, routes in registry.size_routes.read().items():
        for route, ref in routes.items():
            if ref in refs:
                yield f"requests for dimensions {route} of the encoder {encoder[:12]}"
    for index in indexes:
        if index.get("chain") == f"{name}@{version}":
            yield f"the index {index['name']}"


def require_unused(registry: Registry, name: str, version: int, indexes: Iterable[Mapping[str, Any]]) -> None:
    """Raise `ConflictError` with the code `chain_in_use` if something uses a version of a chain."""
    uses = list(list_uses(registry, name, version, indexes))
    if uses:
        raise ConflictError(
            f"{name}@{version} is used by {', '.join(uses)}; to delete it all the same, use --force, or ?force=true",
            param="version",
            code="chain_in_use",
        )
