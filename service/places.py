"""Which chain answers `dimensions: d`, for each encoder.

places.json: {<encoder fingerprint>: {"128": "compact", "nested": "compact"}}

The first live chain of a size takes the empty place of that size, the first live nested chain that
of all sizes without one of their own. Nothing replaces a chain in its place but an admin.
"""

import json
from pathlib import Path
from typing import Any

from filelock import FileLock

from service.errors import BadValueError, UnknownNameError, shortened
from service.names import whole_number
from service.registry import Gate, LoadedChain, Pointer, Registry, made_when, no_gate
from training.locks import lock_file
from transforms.errors import ArtifactError
from transforms.files import make_root, replace_synced

NESTED = "nested"


def parse_places(found: Any) -> dict[str, str]:
    """Return an encoder's places from JSON.

    Raises:
        ValueError, AttributeError: for what is no size or no name of a chain.
    """
    for place, ref in found.items():
        if not isinstance(ref, str) or not (place == NESTED or whole_number(place)):
            raise ValueError(f"{place!r} cannot be the place of {ref!r}")
    return dict(found)


class Places:
    """The places of all encoders, in one file."""

    def __init__(self, path: Path, registry: Registry) -> None:
        self.path = path
        self.registry = registry
        self.known: tuple[tuple[int, int], dict[str, dict[str, str]]] = ((0, 0), {})

    def read(self) -> dict[str, dict[str, str]]:
        """All places.

        Raises:
            ArtifactError: if the file was damaged.
        """
        try:
            found = json.loads(self.path.read_bytes())
            return {str(encoder): parse_places(places) for encoder, places in found.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError(f"{self.path.name} cannot be read: {error!r}") from error

    def current(self) -> dict[str, dict[str, str]]:
        """The same, read only when the file changed; not to be changed."""
        made = made_when(self.path)
        if made != self.known[0]:
            self.known = made, self.read()
        return self.known[1]

    def problem(self) -> str | None:
        """Return why the file cannot be read; None if it can."""
        try:
            self.current()
        except ArtifactError as error:
            return f"{shortened(str(error))}; no chain answers `dimensions` until it is put right or deleted"
        except OSError as error:
            return f"{self.path.name} cannot be read: {error.strerror}; no chain answers `dimensions`"
        return None

    def assign(self, encoder_fingerprint: str, place: str, ref: str, replace: bool) -> str:
        """Give a place to a chain, if it is empty or `replace` is set; return who has it then."""
        with self.locked():
            places = self.read()
            mine = places.setdefault(encoder_fingerprint, {})
            if not replace and self.occupant(mine, place) is not None:
                return mine[place]
            mine[place] = ref
            replace_synced(self.path, json.dumps(places, indent=1).encode(), private=True)
        return ref

    def locked(self) -> FileLock:
        """The right to change the file, among threads and processes."""
        make_root(self.path.parent)
        return lock_file(self.path.with_name(f".{self.path.name}.lock"))

    def promote(self, name: str, version: int, gate: Gate = no_gate) -> Pointer:
        """Make a version live and let it take places; see `Registry.promote`."""
        pointer = self.registry.promote(name, version, gate)
        self.take_empty(name)
        return pointer

    def rollback(self, name: str) -> Pointer:
        """Make the version live that was before and let it take places; errors as `Registry.rollback`."""
        pointer = self.registry.rollback(name)
        self.take_empty(name)
        return pointer

    def take_empty(self, name: str) -> list[str]:
        """Let the live version of a chain take the places that are empty; return those it has."""
        try:
            loaded = self.registry.load(name)
        except (UnknownNameError, ArtifactError):
            return []
        fingerprint, size = loaded.encoder_fingerprint, loaded.chain.output_dimensions
        if fingerprint is None or size is None or size == loaded.chain.input_dimensions:
            return []
        wanted = [str(size), NESTED] if loaded.chain.nested else [str(size)]
        return [place for place in wanted if self.assign(fingerprint, place, name, replace=False) == name]

    def adopt(self, encoder_fingerprint: str, place: str, ref: str) -> str | None:
        """Give an empty place to the chain that has it in another state folder.

        Returns:
            Who has it then; None if it stays empty, for that chain is not here or does not serve it.
        """
        mine = self.read().get(encoder_fingerprint, {})
        if self.occupant(mine, place) is None:
            loaded = self.occupant({place: ref}, place)
            if loaded is None or loaded.encoder_fingerprint not in (None, encoder_fingerprint):
                return None
        return self.assign(encoder_fingerprint, place, ref, replace=False)

    def chain_for(self, encoder_fingerprint: str, dimensions: int, width: int) -> LoadedChain:
        """The chain that answers a size of an encoder's vectors of some width.

        Raises:
            BadValueError: listing the sizes there are.
        """
        places = self.current().get(encoder_fingerprint, {})
        for place in (str(dimensions), NESTED):
            loaded = self.occupant(places, place)
            if loaded is not None and loaded.chain.serves(dimensions):
                return loaded
        sizes = ", ".join([*self.sizes(places), f"{width}, the encoder's own width"])
        raise BadValueError(f"no chain answers {dimensions} dimensions; there are {sizes}", param="dimensions")

    def occupant(self, places: dict[str, str], place: str) -> LoadedChain | None:
        """The chain in a place; None if it is empty, or its chain is gone or no longer serves it."""
        if place not in places:
            return None
        try:
            loaded = self.registry.load(places[place])
        except UnknownNameError:
            return None
        serves = loaded.chain.nested if place == NESTED else loaded.chain.serves(int(place))
        return loaded if serves else None

    def sizes(self, places: dict[str, str]) -> list[str]:
        """The sizes an encoder's places answer, in words."""
        nested = self.occupant(places, NESTED)
        largest = nested.chain.output_dimensions or 0 if nested else 0
        exact = sorted(int(place) for place in places if place != NESTED and self.occupant(places, place))
        words = [str(size) for size in exact if size > largest]
        return [f"any from 1 to {largest}", *words] if largest else words
