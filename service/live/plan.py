"""How a shadow is to run, and what the candidate must reach."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.errors import BadValueError

ROWS_READY = 200
"""Different rows before a shadow's gates say anything: recall@10 is known to about ±.03 then."""

LITTLE = {"latency_ratio"}
"""Gates of a shadow that are the most a figure may be."""

GATES = {"agreement_at_k", "recall_ratio"} | LITTLE


@dataclass(frozen=True)
class Plan:
    """A shadow as it was asked for.

    Attributes:
        share: of the live version's rows that are taken, above 0 and at most 1.
        k: neighbours that are compared.
        rows: held at most.
        gates: the candidate must reach, from `GATES`.
    """

    share: float = 0.1
    k: int = 10
    rows: int = 2000
    gates: Mapping[str, float] = field(default_factory=dict)

    def require_gates(self) -> None:
        """Raise `BadValueError` for a gate that shadows do not measure."""
        for gate in self.gates:
            if gate not in GATES:
                raise BadValueError(f"a shadow has no gate {gate!r}; it has {', '.join(sorted(GATES))}", param="gates")

    def failed(self, figures: Mapping[str, float | None]) -> list[str]:
        """The gates that these figures do not hold; what was not measured, or is NaN, does not hold."""
        found = []
        for gate, wanted in self.gates.items():
            figure = figures.get(gate)
            if figure is None or not (figure <= wanted if gate in LITTLE else figure >= wanted):
                found.append(gate)
        return found
