"""What a certificate must reach: which gates there are, and whether they hold."""

from collections.abc import Mapping
from typing import Any

from training.errors import FitError

QUALITIES = {"local_spearman", "recall_at_10", "recall_at_10_rescored_4x", "positional_stress"}
ALIGNMENT = {"alignment.cosine", "alignment.recall_at_10"}
GATES_BELOW = {"positional_stress", "mean_norm.after", "bytes_per_vector.after"}
"""Gates that want a small number; all others want a large one."""


def require_gates(gates: Mapping[str, float]) -> None:
    """Raise `FitError` for a gate that is no measure of a certificate."""
    for key in gates:
        place, _, measure = key.rpartition(".")
        of_corpus = measure in QUALITIES and (not place or place.startswith(("foreign.", "sizes.")))
        if not of_corpus and key not in {"isoscore.after", *ALIGNMENT, *GATES_BELOW}:
            raise FitError(
                f"there is no gate {key!r}; there are {', '.join(sorted(QUALITIES))}, isoscore.after, "
                "mean_norm.after, bytes_per_vector.after and foreign.CORPUS.MEASURE"
            )


def failed_gates(gates: Mapping[str, float], certificate: Mapping[str, Any]) -> list[str]:
    """The gates that do not hold; what was not measured does not hold."""
    return [gate for gate, wanted in gates.items() if not holds(gate, wanted, gated_figure(gate, certificate))]


def gated_figure(gate: str, certificate: Mapping[str, Any]) -> float | None:
    """What a certificate says of a gate's measure; None if it was not measured."""
    place, _, measure = gate.rpartition(".")
    group, _, corpus = place.partition(".")  # a corpus may have dots in its name
    found: Any = certificate
    for part in filter(None, (group, corpus, measure)):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) else None


def holds(gate: str, wanted: float, found: float | None) -> bool:
    """Whether a figure is as good as its gate wants; NaN never is."""
    return found is not None and (found <= wanted if wants_little(gate) else found >= wanted)


def wants_little(gate: str) -> bool:
    """Whether a gate is the most a figure may be, not the least."""
    return gate in GATES_BELOW or gate.rpartition(".")[2] == "positional_stress"
