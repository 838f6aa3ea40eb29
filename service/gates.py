"""Gates: thresholds that a version must reach before it is promoted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.errors import ConflictError
from service.places import Places
from service.registry import Pointer
from training.fitting.gates import is_upper_bound, read_gate_value, require_gates, satisfies_gate
from transforms.artifact import Manifest


@dataclass(frozen=True)
class Miss:
    """A gate that a version fails.

    Attributes:
        gate: name of the measure; those of a shadow begin with `shadow.`.
        wanted: threshold.
        found: measured value; None if it was not measured.
        little: whether the threshold is a maximum instead of a minimum.
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
    """Make a version live and assign it free size routes, if it passes its gates; return the new live pointer.

    Args:
        places: size routes of the registry that has the chain.
        name: name of the chain.
        version: version to promote.
        gates: thresholds on the certificate, besides those the version was fitted with.
        force: whether to promote in spite of failed gates; the pointer then records which.
        others: gates known to fail, such as those of a shadow.

    Raises:
        ConflictError: with the code `gate_failed` and each failed gate.
        FitError: if a gate is not a measure of the certificate.
        UnknownNameError, ArtifactError: as in `Registry.promote`.
    """
    asked = gates or {}
    require_gates(asked)

    def pass_gates(manifest: Manifest) -> list[str]:
        """Return the names of the failed gates, each once; raise `ConflictError` if there are any without `force`."""
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
    """List the gates that a version's certificate fails: those in its provenance, then those asked for now."""
    certificate = manifest.get("certificate") or {}
    fitted_with = (manifest.get("provenance") or {}).get("gates") or {}
    found = []
    for whose, gates in (("set by its fit", fitted_with), ("asked for", asked)):
        for gate, wanted in gates.items():
            figure = read_gate_value(gate, certificate)
            if not satisfies_gate(gate, wanted, figure):
                found.append(Miss(gate, wanted, figure, is_upper_bound(gate), whose))
    return found
