"""What a version must reach before it becomes live, and what is said when it does not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.errors import ConflictError
from service.places import Places
from service.registry import Pointer
from training.fitting.gates import gated_figure, holds, require_gates, wants_little
from transforms.artifact import Manifest


@dataclass(frozen=True)
class Miss:
    """A gate that does not hold.

    Attributes:
        gate: its measure; those of a shadow begin with `shadow.`.
        wanted: the least, or the most, it may be.
        found: what was measured; None if nothing was.
        little: whether `wanted` is the most.
        whose: who set the gate, in words.
    """

    gate: str
    wanted: float
    found: float | None
    little: bool
    whose: str

    def __str__(self) -> str:
        found = "was not measured" if self.found is None else f"is {self.found:.4g}"
        return f"{self.gate} {found}, wanted {'at most' if self.little else 'at least'} {self.wanted:g} ({self.whose})"


def promote_through_gates(
    places: Places,
    name: str,
    version: int,
    gates: Mapping[str, float] | None = None,
    force: bool = False,
    others: Sequence[Miss] = (),
) -> Pointer:
    """Make a version live and let it take places, if its gates hold.

    Args:
        places: of the registry that has the chain.
        name: of the chain.
        version: to make live.
        gates: keys of the certificate with what they must reach now, beside those the version was fitted with.
        force: make it live nevertheless; the pointer says past which gates.
        others: gates that are known not to hold, such as a shadow's.

    Raises:
        ConflictError: `gate_failed`, naming each gate that does not hold.
        FitError: for a gate that is no measure of a certificate.
        UnknownNameError, ArtifactError: as `Registry.promote`.
    """
    asked = gates or {}
    require_gates(asked)

    def pass_gates(manifest: Manifest) -> list[str]:
        missed = [*missed_gates(manifest, asked), *others]
        if missed and not force:
            raise ConflictError(
                f"{name}@{version} does not pass its gates: {'; '.join(map(str, missed))}. "
                "What is live stays; force promotes it nevertheless",
                param="version",
                code="gate_failed",
            )
        return list(dict.fromkeys(miss.gate for miss in missed))

    return places.promote(name, version, pass_gates)


def missed_gates(manifest: Manifest, asked: Mapping[str, float]) -> list[Miss]:
    """The gates that a version's certificate does not hold: those it was fitted with, and those asked for."""
    certificate = manifest.get("certificate") or {}
    fitted_with = (manifest.get("provenance") or {}).get("gates") or {}
    found = []
    for whose, gates in (("set by its fit", fitted_with), ("asked for", asked)):
        for gate, wanted in gates.items():
            figure = gated_figure(gate, certificate)
            if not holds(gate, wanted, figure):
                found.append(Miss(gate, wanted, figure, wants_little(gate), whose))
    return found
