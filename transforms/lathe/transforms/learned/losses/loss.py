"""Types of GeoPres losses: the loss function, its inputs at setup, and its entry in the registry."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from lathe.transforms.statistics import unit_rows

LossAndGradient = tuple[float, Tensor]
"""Value of a loss, and its gradient with respect to the outputs `(m, p)`."""

Loss = Callable[[Tensor, Sequence[Tensor]], list[LossAndGradient]]
"""Function of a batch `(m, d)` and a list of its outputs, `(m, p)` each, that returns loss and gradient of each."""


@dataclass(frozen=True)
class LossSetup:
    """Data and settings from which a loss is built before the first training step.

    Attributes:
        batch: first batch, `(m, d)`.
        weight: starting weight W, `(k, d)`.
        sizes: numbers p of leading outputs for which the map is trained.
        normalized: whether outputs are normalized to L2 norm 1 before the loss.
        rank_strength: regularization strength of soft ranks.
    """

    batch: Tensor
    weight: Tensor
    sizes: Sequence[int]
    normalized: bool
    rank_strength: float

    def unit_outputs(self) -> list[Tensor]:
        """Return the outputs x Wᵀ of the starting weight, cut to each size p and row-normalized, `(m, p)` each."""
        y = self.batch @ self.weight.T
        return [unit_rows(y[:, :size]) for size in self.sizes]


@dataclass(frozen=True)
class LossKind:
    """Entry of the loss registry: a factory of the loss, and two properties of the loss.

    Attributes:
        set_up: builds the loss from a `LossSetup`.
        of_unit_rows: whether the loss is defined for unit vectors only.
        relative: whether the loss is already divided by its value at the start.
    """

    set_up: Callable[[LossSetup], Loss]
    of_unit_rows: bool = True
    relative: bool = False
