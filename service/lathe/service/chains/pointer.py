"""The live pointer of a chain or trained encoder: which version is live, and which were before.

A pointer is a value: each change returns a new one, which is written to `pointer.json` or to Redis.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lathe.service.errors import ConflictError
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import parse_json

MAX_VERSIONS = 10**9
"""Upper bound of version numbers: `parse_number` parses at most nine digits."""


@dataclass(frozen=True)
class Pointer:
    """The live version of a name, and the versions that were live before.

    Attributes:
        live: version that the bare name refers to; None before the first promotion.
        earlier: versions that were live before, the most recent last; rollback returns to them.
        last: highest version number ever used, so that none is used twice.
        forced: gates that versions promoted by force had failed, by version.
    """

    live: int | None = None
    earlier: tuple[int, ...] = ()
    last: int = 0
    forced: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, name: str, content: bytes, kind: str = "chain") -> "Pointer":
        """Parse the content of `pointer.json`. Raise `ArtifactError` if it is damaged.

        Args:
            name: name that the versions are of, for messages.
            content: content of the file.
            kind: what the name is of, such as "chain".

        Raises:
            ArtifactError: if the content is damaged.
        """
        try:
            fields = parse_json(content)
            forced = {int(version): tuple(gates) for version, gates in fields.get("forced", {}).items()}
            pointer = cls(fields["live"], tuple(fields["earlier"]), fields["last"], forced)
            pointer._require_types()
            return pointer
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(f"the live pointer of the {kind} {name} cannot be read: {error!r}") from error

    def _require_types(self) -> None:
        versions = [*self.earlier, self.last, *self.forced, *([] if self.live is None else [self.live])]
        if not all(type(version) is int and 0 <= version < MAX_VERSIONS for version in versions):
            raise TypeError(f"a version is a whole number below {MAX_VERSIONS}")
        if not all(isinstance(gate, str) for gates in self.forced.values() for gate in gates):
            raise TypeError("a gate is a name")

    @property
    def overridden_gates(self) -> tuple[str, ...]:
        """Gates that the live version failed, and that were overridden when it was promoted."""
        return () if self.live is None else self.forced.get(self.live, ())

    def to_json(self) -> dict[str, Any]:
        """Return `{live, earlier, forced}` for callers of the API, with the gates overridden for the live version."""
        return {"live": self.live, "earlier": list(self.earlier), "forced": list(self.overridden_gates)}

    def serialize(self) -> bytes:
        """Serialize the pointer as the JSON bytes that `parse` reads."""
        return json.dumps(asdict(self)).encode()

    def add_version(self, version: int, promote: bool | None) -> "Pointer":
        """Return a copy of the pointer with `last` set to a new version, which is also live if `promote` is true.

        If `promote` is None, the version is promoted if no version is live.
        """
        pointer = replace(self, last=version)
        live = promote if promote is not None else self.live is None
        return pointer.promote(version) if live else pointer

    def promote(self, version: int, failed_gates: Sequence[str] = ()) -> "Pointer":
        """Return a copy of the pointer with `version` live. The version that was live is appended to `earlier`.

        If the version is live already, the pointer is returned unchanged.

        Args:
            version: version to make live.
            failed_gates: gates that the version fails and that were overridden, recorded in `forced`.
        """
        if self.live == version:
            return self
        # No version is both live and earlier, so that a rollback always changes which one is live.
        earlier = self.earlier if self.live is None else (*self.earlier, self.live)
        forced = self._forced_without(version) | ({version: tuple(failed_gates)} if failed_gates else {})
        return replace(self, live=version, earlier=tuple(v for v in earlier if v != version), forced=forced)

    def roll_back(self, name: str, versions: Collection[int], kind: str = "chain") -> "Pointer":
        """Return a copy of the pointer in which the latest version of `earlier` that still exists is live again.

        The version that was live is not added to `earlier`.

        Raises:
            ConflictError: if no earlier version exists.
        """
        earlier = [version for version in self.earlier if version in versions]
        if not earlier:
            command = f"lathe {kind}s delete {name}@{self.live}"
            undo = f"; to undo its first version, delete it ({command})" if self.live is not None else ""
            raise ConflictError(f"the {kind} {name} has no earlier version to roll back to{undo}", param="name")
        return replace(self, live=earlier[-1], earlier=tuple(earlier[:-1]))

    def remove_version(self, name: str, version: int, versions: Collection[int]) -> "Pointer":
        """Return a copy of the pointer without `version`, which is being deleted.

        If the version was live, none is live.

        Raises:
            ConflictError: if the version is live and there are others, one of which must be promoted first.
        """
        if version == self.live and len(versions) > 1:
            raise ConflictError(f"{name}@{version} is live; promote another version first", param="version")
        live = None if version == self.live else self.live
        earlier = tuple(v for v in self.earlier if v != version)
        return replace(self, live=live, earlier=earlier, forced=self._forced_without(version))

    def _forced_without(self, version: int) -> dict[int, tuple[str, ...]]:
        return {number: gates for number, gates in self.forced.items() if number != version}
