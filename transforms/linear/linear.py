"""Fitted affine maps: one weight, and perhaps a mean that is subtracted first."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from transforms.base.transform import Inverse, Transform
from transforms.linear.affine import Affine, gain_of
from transforms.linear.normalize import Normalize, drop_rounding_residue, unit_image


class Linear(Transform, registered=False):
    """x ↦ W(x − μ), with the weight W `(k, d)` and the mean μ `(d,)`; then to unit length if so said.

    A subclass learns by calling `set_map`. The mean is subtracted before the product, because
    Wx − Wμ loses digits where the mean is larger than the spread. Zero stays zero.

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
        self.measured: tuple[Tensor, float] | None = None
        self.weight: Tensor
        self.mean: Tensor
        self.register_buffer("weight", torch.empty(0))
        if centered:
            self.register_buffer("mean", torch.empty(0))

    def set_map(self, weight: Tensor, mean: Tensor | None = None) -> None:
        """Keep what was learned, in float32."""
        self.weight = weight.float()
        if mean is not None:
            self.mean = mean.float()

    @property
    def gain(self) -> float:
        """The largest factor by which the weight lengthens a vector; measured once for each weight."""
        if self.measured is None or self.measured[0] is not self.weight:
            self.measured = (self.weight, gain_of(self.weight))
        return self.measured[1]

    def forward(self, x: Tensor) -> Tensor:
        """Map rows, `(n, d)` to `(n, k)`."""
        y = functional.linear(x - self.mean if self.centered else x, self.weight)
        return (unit_image if self.renormalize else drop_rounding_residue)(y, x, self.gain)

    def primitives(self) -> list[Transform]:
        """The affine map, and a normalisation if there is one."""
        weight = self.weight.double()
        bias = -(weight @ self.mean.double()) if self.centered else None
        return [Affine(weight, bias), *([Normalize()] if self.renormalize else [])]

    @property
    def inverse_kind(self) -> Inverse:
        """Exact where no direction is lost, approximate where one is, none once lengths are."""
        if self.renormalize:
            return "none"
        return "exact" if self.fitted and self.loses_nothing() else "approximate"

    @property
    def learned_directions(self) -> int:
        """The rows of W."""
        return self.weight.shape[0]

    def loses_nothing(self) -> bool:
        """Whether every direction of the input is in the output."""
        k, d = self.weight.shape
        if k == d and self.orthogonal_rows:
            return bool(self.weight.any(dim=1).all())
        return k >= d and int(torch.linalg.matrix_rank(self.weight)) == d

    def inverse(self) -> Transform:
        """The map y ↦ W⁺y + μ, by the pseudo-inverse: of all that map to y, the one closest to μ."""
        weight = self.weight.double()
        squares = weight.square().sum(1)
        if self.orthogonal_rows:
            back = (weight / squares.masked_fill(squares == 0, 1).unsqueeze(1)).T
        else:
            back = pseudo_inverse(weight)
        return Back(back.float(), self.mean if self.centered else None)


def pseudo_inverse(weight: Tensor) -> Tensor:
    """W⁺ of a float64 copy of a float32 weight: what float32 cannot tell from zero counts as zero."""
    back: Tensor = torch.linalg.pinv(weight, rtol=max(weight.shape) * torch.finfo(torch.float32).eps)
    return back


class Back(Transform, registered=False):
    """y ↦ By + μ, with B `(d, k)` or None for the identity, and μ `(d,)` or None: the way back.

    Other than `Affine`, it takes zero to μ: a zero is the image of the mean.
    """

    kind = "back"

    def __init__(self, weight: Tensor | None, offset: Tensor | None) -> None:
        super().__init__()
        self.weight: Tensor | None
        self.offset: Tensor | None
        self.register_buffer("weight", weight)
        self.register_buffer("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows, `(n, k)` to `(n, d)`."""
        y = x if self.weight is None else functional.linear(x, self.weight)
        return y if self.offset is None else y + self.offset
