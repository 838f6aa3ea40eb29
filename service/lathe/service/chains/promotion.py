"""Gates: thresholds that a version must reach before it is promoted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lathe.service.chains.pointer import Pointer
from lathe.service.chains.version_folder import VersionFolder
from lathe.service.errors import ConflictError
from lathe.training.fitting.requests import is_upper_bound, read_gate_value, require_gates, satisfies_gate


@dataclass(frozen=True)
class FailedGate:
    """A gate that a version fails.

    Attributes:
        value: measured value; None if it was not measured.
        is_maximum: whether the threshold is a maximum instead of a minimum.
        origin: who set the gate, in words.
    """

    gate: str
    threshold: float
    value: float | None
    is_maximum: bool
    origin: str

    def __str__(self) -> str:
        value = "was not measured" if self.value is None else f"is {self.value:.4g}"
        bound = "at most" if self.is_maximum else "at least"
        return f"{self.gate} {value}, wanted {bound} {self.threshold:g} ({self.origin})"


def promote_with_gates(
    registry: VersionFolder,
    name: str,
    version: int,
    gates: Mapping[str, float] | None = None,
    force: bool = False,
    require_known_gates: Callable[[Mapping[str, float]], None] = require_gates,
) -> Pointer:
    """Make a version live if its certificate meets all gates (thresholds), and return the new live pointer.

    Args:
        registry: registry of chains, or trained encoders.
        name: name of the chain or encoder.
        version: version to promote.
        gates: thresholds on the certificate, besides those the version was fitted with.
        force: whether to promote in spite of failed gates; the pointer then records which.
        require_known_gates: raises for a gate that no certificate of this kind has.

    Raises:
        ConflictError: with the code `gate_failed` and each failed gate.
        FitError, JobError: if a gate is not a measure of the certificate.
        UnknownNameError: if there is no such version.
        ArtifactError: if its files are damaged.
    """
    requested = gates or {}
    require_known_gates(requested)

    def pass_gates(manifest: Mapping[str, Any]) -> list[str]:
        failed = _find_failed_gates(manifest, requested)
        if failed and not force:
            raise ConflictError(
                f"{name}@{version} does not pass its gates: {'; '.join(map(str, failed))}. "
                "The live version stays; `force` promotes this one in spite of them",
                param="version",
                code="gate_failed",
            )
        return list(dict.fromkeys(failed_gate.gate for failed_gate in failed))

    return registry.promote(name, version, pass_gates)


def _find_failed_gates(manifest: Mapping[str, Any], requested: Mapping[str, float]) -> list[FailedGate]:
    """List the gates (thresholds) that a version's certificate misses.

    The gates set by its fit come first, then those in `requested`. A metric that was not measured fails its gate.
    """
    certificate = manifest.get("certificate") or {}
    # The fit stored its gates, so that a promotion by hand has to pass them too.
    fitted_with = (manifest.get("provenance") or {}).get("gates") or {}
    failed = []
    for origin, gates in (("set by its fit", fitted_with), ("asked for", requested)):
        for gate, threshold in gates.items():
            figure = read_gate_value(gate, certificate)
            if not satisfies_gate(gate, threshold, figure):
                failed.append(FailedGate(gate, threshold, figure, is_upper_bound(gate), origin))
    return failed
