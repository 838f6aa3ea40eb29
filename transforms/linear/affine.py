"""Affine maps that fitted transforms fold into, and their inverses."""

import torch
from torch import Tensor
from torch.nn import functional

from transforms.base import Map, Signature
from transforms.errors import StepError
from transforms.statistics import drop_rounding_residue, unit_image

GAIN_ITERATIONS = 30
"""Of power iteration; it comes within some percent of the norm, and the tolerance is no finer."""


class Affine(Map):
    """x ↦ Wx + b, with the weight W `(k, d)` and the bias b `(k,)` or None, then to unit length if `normalize`.

    Computed by `Chain.fold`. Zero stays zero, and an output that is mere rounding error becomes zero.
    """

    kind = "affine"

    def __init__(self, weight: Tensor, bias: Tensor | None = None, normalize: bool = False) -> None:
        super().__init__()
        self.weight: Tensor
        self.bias: Tensor | None
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.normalize = normalize
        self.gain = largest_gain(weight)

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the number of rows of the weight as dimensions.

        Raises:
            StepError: if the inputs do not have the dimensions of the weight's rows.
        """
        if inputs.dimensions not in (None, self.weight.shape[1]):
            raise StepError(
                f"the affine map takes vectors of {self.weight.shape[1]} dimensions, not {inputs.dimensions}"
            )
        return Signature(self.weight.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        """Map rows, `(n, d)` to `(n, k)`."""
        y = functional.linear(x, self.weight, self.bias)
        return (unit_image if self.normalize else drop_rounding_residue)(y, x, self.gain)

    def then(self, following: "Affine") -> "Affine":
        """Return the one map that applies this map and then `following`, multiplied in float64."""
        weight = following.weight.double() @ self.weight.double()
        if self.bias is None and following.bias is None:
            return Affine(weight)
        bias = weight.new_zeros(weight.shape[0])
        if self.bias is not None:
            bias = bias + following.weight.double() @ self.bias.double()
        if following.bias is not None:
            bias = bias + following.bias.double()
        return Affine(weight, bias)


class InverseAffine(Map):
    """y ↦ By + μ, with B `(d, k)` or None for the identity, and μ `(d,)` or None: the inverse of an affine transform.

    Unlike `Affine` it maps zero to μ, because a zero is the image of the mean.
    """

    kind = "inverse_affine"

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


def translation(offset: Tensor) -> Affine:
    """Return x ↦ x + offset as an affine map."""
    return Affine(torch.eye(len(offset), dtype=torch.float64, device=offset.device), offset)


def largest_gain(weight: Tensor) -> float:
    """Estimate the largest factor by which a weight `(k, d)` lengthens a vector, by power iteration.

    Returns a Python number, because reading a tensor in `forward` would make a GPU wait.
    """
    weight = weight.double()
    start = torch.Generator().manual_seed(0)
    vector = torch.randn(weight.shape[1], generator=start, dtype=torch.float64).to(weight.device)
    for _ in range(GAIN_ITERATIONS):
        image = weight.T @ (weight @ (vector / vector.norm()))
        if not image.any():
            return 0.0
        vector = image
    return float(vector.norm().sqrt())


def pseudo_inverse(weight: Tensor) -> Tensor:
    """Return W⁺ of a float64 copy of a float32 weight; what float32 cannot tell from zero counts as zero."""
    inverse: Tensor = torch.linalg.pinv(weight, rtol=max(weight.shape) * torch.finfo(torch.float32).eps)
    return inverse
