"""What uses a version of a chain: size routes, indexes, and columns of PostgreSQL.

A version in use is deleted only with a flag that says so. Columns are in databases that a server does not know, so the
commands that fill them record them in a file of the state folder:

uses.json: {"pg128@1": ["the column small of articles in the database app on localhost"]}
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lathe.service.chains.registry import Registry
from lathe.service.errors import ConflictError
from lathe.training.locks import lock_file
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import read_json_file, replace_synced


def record_use(path: Path, chain: str, use: str) -> None:
    """Record in a file that something outside the state folder, such as a PostgreSQL column, uses a chain's version.

    A use that is recorded already is not recorded again.

    Args:
        path: file of the recorded uses; it is created if it is missing.
        chain: version of the chain, as `name@version`.
        use: what uses it, in words that end the sentence "It is used by …".

    Raises:
        ArtifactError: if the file is damaged.
    """
    with lock_file(path.with_name(f".{path.name}.lock")):
        recorded = read_recorded_uses(path)
        if use in recorded.get(chain, []):
            return
        recorded.setdefault(chain, []).append(use)
        replace_synced(path, json.dumps(recorded, indent=1).encode(), private=True)


def read_recorded_uses(path: Path) -> dict[str, list[str]]:
    """Read the uses that `record_use` wrote, as `{"name@version": [phrase, …]}`, or {} if there is no file.

    Raises:
        ArtifactError: if the file is damaged.
    """
    try:
        content = read_json_file(path)
        return {str(chain): [str(use) for use in uses] for chain, uses in content.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"{path} cannot be read: {error!r}; delete it to delete chains without this check"
        ) from error


def list_uses(
    registry: Registry,
    name: str,
    version: int,
    indexes: Iterable[Mapping[str, Any]],
    recorded: Mapping[str, Iterable[str]],
) -> Iterator[str]:
    """Yield a phrase for each size route, index and recorded outside use that depends on a version of a chain.

    Args:
        registry: registry that has the chain.
        name: name of the chain.
        version: version of the chain.
        indexes: descriptions of all indexes, as `GET /indexes` answers them.
        recorded: recorded uses by version, see `read_recorded_uses`.
    """
    versioned = f"{name}@{version}"
    refs = {versioned, *([name] if registry.live(name) == version else [])}
    for encoder, routes in registry.size_routes.read().items():
        for route, ref in routes.items():
            if ref in refs:
                yield f"requests for dimensions {route} of the encoder {encoder[:12]}"
    for index in indexes:
        if index.get("chain") == versioned:
            yield f"the index {index['name']}"
    yield from recorded.get(versioned, ())


def delete_version(
    registry: Registry,
    name: str,
    version: int,
    force: bool,
    uses: Path,
    describe_indexes: Callable[[], Iterable[Mapping[str, Any]]],
) -> None:
    """Delete a version of a chain permanently. Raise `ConflictError` if it is in use, unless `force` is set.

    Args:
        registry: registry that has the chain.
        name: name of the chain.
        version: version of the chain.
        force: whether to delete it although something uses it.
        uses: file of the recorded uses.
        describe_indexes: returns the descriptions of all indexes; not called with `force`.

    Raises:
        ConflictError: with the code `chain_in_use` if the version is used.
    """
    users = [] if force else list(list_uses(registry, name, version, describe_indexes(), read_recorded_uses(uses)))
    if users:
        raise ConflictError(
            f"{name}@{version} is used by {', '.join(users)}; to delete it all the same, use --force, or ?force=true",
            param="version",
            code="chain_in_use",
        )
    registry.delete(name, version)
