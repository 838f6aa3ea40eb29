"""What a GeoPres loss is, and what it may use when it is set up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from transforms.statistics import unit_rows

LossAndGradient = tuple[float, Tensor]
"""A loss, and its gradient with respect to the outputs `(m, p)`."""

Loss = Callable[[Tensor, Sequence[Tensor]], list[LossAndGradient]]
"""Computes, for a batch `(m, d)` and several outputs of it `(m, p)` each, the loss and gradient of every output."""


@dataclass(frozen=True)
class LossSetup:
    """What a loss may use when it is set up, before the first training step.

    Attributes:
        batch: the first batch, `(m, d)`.
        weight: the starting weight, `(k, d)`.
        sizes: the prefixes of the output that are trained.
        normalized: whether outputs are brought to unit length.
        rank_strength: of soft ranks.
    """

    batch: Tensor
    weight: Tensor
    sizes: Sequence[int]
    normalized: bool
    rank_strength: float

    def unit_outputs(self) -> list[Tensor]:
        """Return the starting outputs of every size at unit length, `(m, p)` each."""
        y = self.batch @ self.weight.T
        return [unit_rows(y[:, :size]) for size in self.sizes]


@dataclass(frozen=True)
class LossKind:
    """A loss that GeoPres can train with.

    Attributes:
        set_up: returns the loss.
        of_unit_rows: whether the loss is defined for unit vectors only.
        relative: whether the loss is already relative to its value at the start.
    """

    set_up: Callable[[LossSetup], Loss]
    of_unit_rows: bool = True
    relative: bool = False
