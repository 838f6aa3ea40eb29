"""Configuration of a shadow, and the gates that its candidate must reach."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lathe.service.errors import BadValueError

ROWS_READY = 200
"""Minimum number of distinct rows to judge a shadow's gates; recall@10 is then known to about ±0.03."""

UPPER_BOUND_GATES = {"latency_ratio"}
"""Gates of a shadow whose threshold is a maximum instead of a minimum."""

GATES = {"agreement_at_k", "recall_ratio"} | UPPER_BOUND_GATES
"""All gates of a shadow."""


@dataclass(frozen=True)
class ShadowPlan:
    """Configuration of a shadow.

    Attributes:
        share: share of the live version's rows to sample, in (0, 1].
        k: number of neighbours to compare.
        rows: maximum number of rows held.
        gates: thresholds that the candidate must reach, by names in `GATES`.
    """

    share: float = 0.1
    k: int = 10
    rows: int = 2000
    gates: Mapping[str, float] = field(default_factory=dict)

    def require_gates(self) -> None:
        """Raise `BadValueError` if a gate is not one that shadows measure."""
        for gate in self.gates:
            if gate not in GATES:
                raise BadValueError(f"a shadow has no gate {gate!r}; it has {', '.join(sorted(GATES))}", param="gates")

    def find_failed(self, figures: Mapping[str, float | None]) -> list[str]:
        """Return the names of the gates that the figures fail; a figure that is missing, None or NaN fails."""
        found = []
        for gate, wanted in self.gates.items():
            figure = figures.get(gate)
            if figure is None or not (figure <= wanted if gate in UPPER_BOUND_GATES else figure >= wanted):
                found.append(gate)
        return found
