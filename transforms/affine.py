"""A plain affine map: what neighbouring transforms fold into."""

import torch
from torch import Tensor
from torch.nn import functional

from transforms.arrays import Vectors
from transforms.errors import StepError
from transforms.moments import Moments
from transforms.normalize import drop_rounding_residue
from transforms.transform import Progress, Transform


class Affine(Transform, registered=False):
    """x ↦ Wx + b, with the weight W `(k, d)` and the bias b `(k,)` or None.

    Computed by `Chain.fold`, never fitted or saved. Without a bias, rows inside the kernel of W
    come out as exact zeros.
    """

    kind = "affine"

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight: Tensor
        self.bias: Tensor | None
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        # A Python number: reading a tensor in forward would make a GPU wait.
        self.gain = float(torch.linalg.matrix_norm(weight.double(), ord=2))

    def width_after(self, dimensions: int) -> int:
        """The rows of the weight.

        Raises:
            StepError: if the weight is not `dimensions` wide.
        """
        if dimensions != self.weight.shape[1]:
            raise StepError(f"the affine map takes vectors {self.weight.shape[1]} wide, not {dimensions}")
        return self.weight.shape[0]

    def learn(self, data: Moments | Vectors, on_progress: Progress) -> None:
        """Refuse: affine maps come from folding.

        Raises:
            StepError: always.
        """
        raise StepError("affine is what other steps fold into; it cannot be fitted itself")

    def forward(self, x: Tensor) -> Tensor:
        """Map rows, `(n, d)` to `(n, k)`."""
        y = functional.linear(x, self.weight, self.bias)
        return y if self.bias is not None else drop_rounding_residue(y, x, self.gain)

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
