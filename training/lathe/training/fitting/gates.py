"""Gates: bounds on a certificate's metrics that a fit must satisfy."""

from collections.abc import Mapping, Sequence
from typing import Any

from lathe.training.errors import FitError

QUALITIES = {"local_spearman", "recall_at_10", "recall_at_10_rescored_4x", "positional_stress"}
"""Metrics of a certificate that exist for the whole, for each out-of-domain corpus and for each size."""

ALIGNMENT = {"alignment.cosine", "alignment.recall_at_10"}
"""Metrics of a certificate of a fit on pairs."""

RELEVANCE = {f"relevance.{measure}.{side}" for measure in ("ndcg_at_10", "recall_at_10") for side in ("gain", "after")}
"""Metrics of a certificate with pairs of query and document."""

UPPER_BOUNDS = {"positional_stress", "mean_norm.after", "bytes_per_vector.after"}
"""Keys whose gate is a maximum; all others are a minimum."""


def require_gates(gates: Mapping[str, float]) -> None:
    """Check that each gate (a limit that a metric must reach) is named after a metric of the certificate. Raises
    `FitError` for any other key.
    """
    for key in gates:
        place, _, measure = key.rpartition(".")
        of_corpus = measure in QUALITIES and (not place or place.startswith(("out_of_domain.", "sizes.")))
        if not of_corpus and key not in {"isoscore.after", *ALIGNMENT, *RELEVANCE, *UPPER_BOUNDS}:
            raise FitError(
                f"there is no gate {key!r}; there are {', '.join(sorted(QUALITIES))}, isoscore.after, "
                "mean_norm.after, bytes_per_vector.after, out_of_domain.CORPUS.MEASURE and relevance.ndcg_at_10.gain"
            )


def list_failed_gates(gates: Mapping[str, float], certificate: Mapping[str, Any]) -> list[str]:
    """Return the keys of the gates whose metric in the certificate misses its limit. A gate whose metric was not
    measured fails.
    """
    return [
        gate for gate, wanted in gates.items() if not satisfies_gate(gate, wanted, read_gate_value(gate, certificate))
    ]


def read_gate_value(gate: str, certificate: Mapping[str, Any]) -> float | None:
    """Look up the metric that a gate is named after in a certificate. Returns its value, or None if it was not
    measured.
    """
    found = _look_up(gate.split("."), certificate)
    return found if isinstance(found, int | float) else None


def _look_up(parts: Sequence[str], found: Any) -> Any:
    """Return what a dotted path leads to in nested mappings, or None. Keys may have dots themselves."""
    if not parts:
        return found
    if not isinstance(found, Mapping):
        return None

    # The name of a corpus or data set may have dots, so a key may be several parts of the path.
    for count in range(1, len(parts) + 1):
        key = ".".join(parts[:count])
        if key in found and (value := _look_up(parts[count:], found[key])) is not None:
            return value
    return None


def satisfies_gate(gate: str, wanted: float, found: float | None) -> bool:
    """Return whether a metric's value satisfies its gate's bound.

    None and NaN never do.
    """
    return found is not None and (found <= wanted if is_upper_bound(gate) else found >= wanted)


def is_upper_bound(gate: str) -> bool:
    """Return whether the gate's bound is a maximum."""
    return gate in UPPER_BOUNDS or gate.rpartition(".")[2] == "positional_stress"
