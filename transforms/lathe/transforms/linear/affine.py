"""Affine maps, which fitted transforms are folded into, and their inverses."""

import torch
from torch import Tensor

from lathe.transforms.base import Map, Signature
from lathe.transforms.errors import StepError
from lathe.transforms.products import multiply_rows
from lathe.transforms.statistics import drop_rounding_residue, unit_image

GAIN_ITERATIONS = 30
"""Number of power iterations; they find the norm within a few percent, and the rounding tolerance needs no more."""


class Affine(Map):
    """x ↦ Wx + b, with the weight W `(k, d)` and the bias b `(k,)` or None, L2-normalized if `normalize`.

    `Chain.fold` builds such maps. Zero rows stay zero, and outputs that are only rounding error become zero.
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
        """Return the signature of the outputs, of which only the number of dimensions is set: k, for a weight `(k, d)`.

        Raises:
            StepError: if the inputs are known not to have d dimensions.
        """
        if inputs.dimensions not in (None, self.weight.shape[1]):
            raise StepError(
                f"the affine map takes vectors of {self.weight.shape[1]} dimensions, not {inputs.dimensions}"
            )
        return Signature(self.weight.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        """Return Wx + b, `(n, d)` to `(n, k)`, normalized if `normalize`.

        Zero rows, and outputs that are only rounding error, become zero.
        """
        y = multiply_rows(x, self.weight, self.bias)
        return (unit_image if self.normalize else drop_rounding_residue)(y, x, self.gain)

    def normalized(self) -> "Affine":
        """Return this map followed by L2 normalization. It shares the tensors."""
        return Affine(self.weight, self.bias, normalize=True)

    def then(self, following: "Affine") -> "Affine":
        """Return one `Affine` that applies this map and then `following`, without normalizing. Their matrices are
        multiplied in float64.

        The bias is None if neither map has one. The `normalize` flags are ignored.
        """
        # W₂(W₁x + b₁) + b₂ = W₂W₁x + (W₂b₁ + b₂)
        weight = following.weight.double() @ self.weight.double()
        if self.bias is None and following.bias is None:
            return Affine(weight)

        bias = weight.new_zeros(weight.shape[0])
        if self.bias is not None:
            bias = bias + following.weight.double() @ self.bias.double()

        if following.bias is not None:
            bias = bias + following.bias.double()

        return Affine(weight, bias)


class Projection(Affine):
    """x ↦ x − Σ(x·uᵢ)uᵢ + b, an `Affine` of weight I − UᵀU that is applied without that weight.

    The r directions uᵢ, orthonormal, are the rows of U `(r, d)`. Applied alone, the map takes 2rd products a row in
    place of d². Multiplied with another map, it is an `Affine` like any other.
    """

    kind = "projection"

    def __init__(self, removed: Tensor, bias: Tensor | None = None, normalize: bool = False) -> None:
        identity = torch.eye(removed.shape[1], dtype=removed.dtype, device=removed.device)
        super().__init__(identity - removed.T @ removed, bias, normalize)
        self.removed: Tensor
        self.register_buffer("removed", removed)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows without their parts along the directions, plus b, `(n, d)` to `(n, d)`, normalized if
        `normalize`.

        Zero rows, and outputs that are only rounding error, become zero.
        """
        y = x - (x @ self.removed.T) @ self.removed
        if self.bias is not None:
            y = y + self.bias
        return (unit_image if self.normalize else drop_rounding_residue)(y, x, self.gain)

    def normalized(self) -> "Projection":
        """Return this map followed by L2 normalization."""
        return Projection(self.removed, self.bias, normalize=True)


class InverseAffine(Map):
    """Inverse of an affine transform: y ↦ By + μ, with B `(d, k)` or None for the identity, and μ `(d,)` or None for 0.

    Unlike `Affine`, it maps zero rows to μ, because the transform maps its mean to zero.
    """

    kind = "inverse_affine"

    def __init__(self, weight: Tensor | None, offset: Tensor | None) -> None:
        super().__init__()
        self.weight: Tensor | None
        self.offset: Tensor | None
        self.register_buffer("weight", weight)
        self.register_buffer("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        """Return By + μ, `(n, k)` to `(n, d)`, without the product if B is None and without the sum if μ is None."""
        y = x if self.weight is None else multiply_rows(x, self.weight)
        return y if self.offset is None else y + self.offset


def translation(offset: Tensor) -> Affine:
    """Return x ↦ x + offset as an `Affine` whose weight is the identity in float64."""
    return Affine(torch.eye(len(offset), dtype=torch.float64, device=offset.device), offset)


def largest_gain(weight: Tensor) -> float:
    """Estimate the spectral norm (largest singular value) of a weight `(k, d)` by power iteration from a fixed start.
    Returns it as a float.

    It is a Python number, because reading a tensor in `forward` would make a GPU wait.
    """
    weight = weight.double()
    # Drawn on the CPU, because a GPU's generator draws other numbers from the same seed.
    start = torch.Generator().manual_seed(0)
    vector = torch.randn(weight.shape[1], generator=start, dtype=torch.float64).to(weight.device)

    for _ in range(GAIN_ITERATIONS):
        image = weight.T @ (weight @ (vector / vector.norm()))
        if not image.any():
            return 0.0
        vector = image

    # The vector is WᵀW times a unit vector, so its norm approaches the square of the singular value.
    return float(vector.norm().sqrt())


def pseudo_inverse(weight: Tensor) -> Tensor:
    """Return the pseudo-inverse W⁺ `(d, k)` of a weight, a float64 copy of a float32 one.

    Singular values within float32 rounding of zero count as zero.
    """
    # The default tolerance follows the dtype: float64's would invert the rounding error of float32 entries.
    inverse: Tensor = torch.linalg.pinv(weight, rtol=max(weight.shape) * torch.finfo(torch.float32).eps)
    return inverse
