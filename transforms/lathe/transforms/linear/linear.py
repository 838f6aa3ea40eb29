"""Base class of linear transforms, which learn a weight and, if centred, a mean to subtract first."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from lathe.transforms.base import Inverse, Map, Transform
from lathe.transforms.linear.affine import Affine, InverseAffine, largest_gain, pseudo_inverse
from lathe.transforms.linear.normalize import Normalize
from lathe.transforms.statistics import drop_rounding_residue, unit_image


class Linear(Transform, registered=False):
    """Base class of x ↦ W(x − μ), with the weight W `(k, d)` and the mean μ `(d,)`, L2-normalized if `renormalize`.

    A subclass learns by calling `set_map`. The mean is subtracted before the product, because Wx − Wμ loses digits
    where the mean is larger than the spread. Zero rows stay zero.

    Args:
        centered: whether a mean is learned and subtracted.
        renormalize: whether outputs are L2-normalized.
    """

    orthogonal_rows: ClassVar[bool] = False
    """Whether the rows of W are mutually orthogonal, so that W⁺ is Wᵀ with each column divided by its squared norm."""
    shapes = {"weight": ("k", "d"), "mean": ("d",)}

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
        """Store the weight as float32, and the mean too if one is given."""
        self.weight = weight.float()
        if mean is not None:
            self.mean = mean.float()

    @property
    def gain(self) -> float:
        """Spectral norm of the weight, estimated by power iteration and cached until the weight is replaced."""
        # Compared by identity: a fit, `restore` and `.to` assign a new tensor, and reading numbers makes a GPU wait.
        if self._gain_of_weight is None or self._gain_of_weight[0] is not self.weight:
            self._gain_of_weight = (self.weight, largest_gain(self.weight))
        return self._gain_of_weight[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return W(x − μ), or Wx if not centred, `(n, d)` to `(n, k)`.

        Rows are then normalized if `renormalize`.

        Zero rows, and outputs that are only rounding error, become zero.
        """
        y = functional.linear(x - self.mean if self.centered else x, self.weight)
        return (unit_image if self.renormalize else drop_rounding_residue)(y, x, self.gain)

    def primitives(self) -> list[Map]:
        """Return the map as a list: one float64 `Affine` with the bias −Wμ, and `Normalize` if `renormalize`."""
        weight = self.weight.double()
        bias = -(weight @ self.mean.double()) if self.centered else None
        return [Affine(weight, bias), *([Normalize()] if self.renormalize else [])]

    @property
    def inverse_kind(self) -> Inverse:
        """How well the map can be inverted: `"exact"`, `"approximate"` or `"none"`. It is `"none"` if outputs are
        renormalized, `"exact"` if fitted and W has rank d, else `"approximate"`.

        Renormalizing loses the row norms; a rank below d loses directions.
        """
        if self.renormalize:
            return "none"
        return "exact" if self.fitted and self._retains_all_directions() else "approximate"

    @property
    def learned_directions(self) -> int:
        """Number of rows of the weight, k, which is 0 before the fit."""
        return self.weight.shape[0]

    def inverse(self) -> Map:
        """Return the map from outputs back to inputs, by the pseudo-inverse W⁺: y ↦ W⁺y + μ, without μ if not centred.

        Of all inputs that map to y, the result is the one closest to μ.
        """
        weight = self.weight.double()
        squares = weight.square().sum(1)
        if self.orthogonal_rows:
            # A row of zeros is a dropped direction; divided by 1, its column stays zero.
            inverse = (weight / squares.masked_fill(squares == 0, 1).unsqueeze(1)).T
        else:
            inverse = pseudo_inverse(weight)

        return InverseAffine(inverse.float(), self.mean if self.centered else None)

    def _retains_all_directions(self) -> bool:
        """Return whether the weight `(k, d)` has rank d, so that no input direction is lost."""
        k, d = self.weight.shape
        # Orthogonal rows have full rank unless one is zero; `matrix_rank` would not count rows far shorter than others.
        if k == d and self.orthogonal_rows:
            return bool(self.weight.any(dim=1).all())
        return k >= d and int(torch.linalg.matrix_rank(self.weight)) == d
