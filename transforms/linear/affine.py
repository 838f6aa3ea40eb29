"""A plain affine map: what neighbouring transforms fold into."""

import torch
from torch import Tensor
from torch.nn import functional

from transforms.base.signature import Outline
from transforms.base.transform import Run, Transform
from transforms.errors import StepError
from transforms.linear.normalize import drop_rounding_residue, unit_image
from transforms.statistics.moments import Moments
from transforms.vectors import Vectors

GAIN_STEPS = 30
"""Of power iteration; it comes within some percent of the norm, and the tolerance is no finer."""


class Affine(Transform, registered=False):
    """x ↦ Wx + b, with the weight W `(k, d)` and the bias b `(k,)` or None; then to unit length if so said.

    Computed by `Chain.fold`, never fitted or saved. Zero stays zero, and what comes out as mere
    rounding error becomes zero.
    """

    kind = "affine"

    def __init__(self, weight: Tensor, bias: Tensor | None = None, normalize: bool = False) -> None:
        super().__init__()
        self.weight: Tensor
        self.bias: Tensor | None
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.normalize = normalize
        self.gain = gain_of(weight)

    def after(self, before: Outline) -> Outline:
        """The rows of the weight.

        Raises:
            StepError: if the weight is not as wide as the vectors.
        """
        if before.width not in (None, self.weight.shape[1]):
            raise StepError(f"the affine map takes vectors {self.weight.shape[1]} wide, not {before.width}")
        return Outline(self.weight.shape[0])

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """Refuse: affine maps come from folding.

        Raises:
            StepError: always.
        """
        raise StepError("affine is what other steps fold into; it cannot be fitted itself")

    def forward(self, x: Tensor) -> Tensor:
        """Map rows, `(n, d)` to `(n, k)`."""
        y = functional.linear(x, self.weight, self.bias)
        return (unit_image if self.normalize else drop_rounding_residue)(y, x, self.gain)

    def then(self, following: "Affine") -> "Affine":
        """The one map that does this and then `following`, multiplied in float64."""
        weight = following.weight.double() @ self.weight.double()
        if self.bias is None and following.bias is None:
            return Affine(weight)
        bias = weight.new_zeros(weight.shape[0])
        if self.bias is not None:
            bias = bias + following.weight.double() @ self.bias.double()
        if following.bias is not None:
            bias = bias + following.bias.double()
        return Affine(weight, bias)


def gain_of(weight: Tensor) -> float:
    """The largest factor by which a weight `(k, d)` lengthens a vector, by power iteration.

    A Python number: reading a tensor in forward would make a GPU wait.
    """
    weight = weight.double()
    start = torch.Generator().manual_seed(0)
    vector = torch.randn(weight.shape[1], generator=start, dtype=torch.float64).to(weight.device)
    for _ in range(GAIN_STEPS):
        image = weight.T @ (weight @ (vector / vector.norm()))
        if not image.any():
            return 0.0
        vector = image
    return float(vector.norm().sqrt())
