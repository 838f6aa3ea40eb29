"""Base class of transforms that learn a weight, and perhaps a mean that is subtracted first."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from transforms.base import Inverse, Map, Transform
from transforms.linear.affine import Affine, InverseAffine, largest_gain, pseudo_inverse
from transforms.linear.normalize import Normalize
from transforms.statistics import drop_rounding_residue, unit_image


class Linear(Transform, registered=False):
    """x ↦ W(x − μ), with the weight W `(k, d)` and the mean μ `(d,)`, then to unit length if `renormalize`.

    A subclass learns by calling `set_map`. The mean is subtracted before the product, because Wx − Wμ loses digits
    where the mean is larger than the spread. Zero stays zero.

    Args:
        centered: whether there is a mean to subtract.
        renormalize: whether outputs are brought to unit length.
    """

    orthogonal_rows: ClassVar[bool] = False
    """Whether the rows of W are orthogonal to one another, so that the inverse is a transpose."""

    def __init__(self, centered: bool = False, renormalize: bool = False) -> None:
        super().__init__()
        self.centered = centered
        self.renormalize = renormalize
        self._gain_of_weight: tuple[Tensor, float] | None = None
        self.weight: Tensor
        self.mean: Tensor
        self.register_buffer("weight", torch.empty(0))
        if centered:
            self.register_buffer("mean", torch.empty(0))

    def set_map(self, weight: Tensor, mean: Tensor | None = None) -> None:
        """Store the learned weight and mean in float32."""
        self.weight = weight.float()
        if mean is not None:
            self.mean = mean.float()

    @property
    def gain(self) -> float:
        """Largest factor by which the weight lengthens a vector, computed once for each weight."""
        if self._gain_of_weight is None or self._gain_of_weight[0] is not self.weight:
            self._gain_of_weight = (self.weight, largest_gain(self.weight))
        return self._gain_of_weight[1]

    def forward(self, x: Tensor) -> Tensor:
        """Map rows, `(n, d)` to `(n, k)`."""
        y = functional.linear(x - self.mean if self.centered else x, self.weight)
        return (unit_image if self.renormalize else drop_rounding_residue)(y, x, self.gain)

    def primitives(self) -> list[Map]:
        """Return the affine map, and the normalization if there is one."""
        weight = self.weight.double()
        bias = -(weight @ self.mean.double()) if self.centered else None
        return [Affine(weight, bias), *([Normalize()] if self.renormalize else [])]

    @property
    def inverse_kind(self) -> Inverse:
        """Exact if no direction is lost, approximate if one is, none if lengths are lost."""
        if self.renormalize:
            return "none"
        return "exact" if self.fitted and self._retains_all_directions() else "approximate"

    @property
    def learned_directions(self) -> int:
        """Number of rows of W."""
        return self.weight.shape[0]

    def inverse(self) -> Map:
        """Return y ↦ W⁺y + μ with the pseudo-inverse W⁺: of all inputs that map to y, the one closest to μ."""
        weight = self.weight.double()
        squares = weight.square().sum(1)
        if self.orthogonal_rows:
            inverse = (weight / squares.masked_fill(squares == 0, 1).unsqueeze(1)).T
        else:
            inverse = pseudo_inverse(weight)
        return InverseAffine(inverse.float(), self.mean if self.centered else None)

    def _retains_all_directions(self) -> bool:
        """Return whether the weight has the rank of the input."""
        k, d = self.weight.shape
        if k == d and self.orthogonal_rows:
            return bool(self.weight.any(dim=1).all())
        return k >= d and int(torch.linalg.matrix_rank(self.weight)) == d
