"""Affine maps, which fitted transforms are folded into, L2 normalization, and the base class of linear transforms.

A linear transform learns a weight and, if centred, a mean to subtract first.
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from lathe.transforms.base import FitContext, Inverse, Map, Signature, Transform
from lathe.transforms.errors import StepError
from lathe.transforms.products import multiply_rows
from lathe.transforms.statistics import Moments, drop_rounding_residue, normalize_outputs, unit_rows
from lathe.transforms.vectors import Vectors

GAIN_ITERATIONS = 30
"""Number of power iterations; they find the norm within a few percent, and the rounding tolerance needs no more."""


class Affine(Map):
    """x ↦ Wx + b with the weight W `(k, d)` and the bias b `(k,)` or None.

    Outputs are L2-normalized if `normalize`. Zero rows stay zero, and outputs that are only rounding error become zero.
    `Chain.fold` builds such maps.
    """

    kind = "affine"
    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None, normalize: bool = False) -> None:
        super().__init__(weight=weight, bias=bias)
        self.normalize = normalize
        self.gain = _estimate_spectral_norm(weight)

    def output_signature(self, inputs: Signature) -> Signature:
        """Return a signature with the number of output dimensions, k for a weight `(k, d)`.

        Nothing else is known of the outputs.

        Raises:
            StepError: if the inputs are known not to have d dimensions.
        """
        if inputs.dimensions not in (None, self.weight.shape[1]):
            raise StepError(
                f"the affine map takes vectors of {self.weight.shape[1]} dimensions, not {inputs.dimensions}"
            )
        return Signature(self.weight.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        """Return Wx + b for rows x, `(n, d)` to `(n, k)`, L2-normalized if `normalize`.

        Zero rows, and outputs that are only rounding error, become zero.
        """
        y = multiply_rows(x, self.weight, self.bias)
        return (normalize_outputs if self.normalize else drop_rounding_residue)(y, x, self.gain)

    def normalized(self) -> "Affine":
        """Return an `Affine` that is this map followed by L2 normalization, with the same tensors."""
        return Affine(self.weight, self.bias, normalize=True)

    def then(self, following: "Affine") -> "Affine":
        """Return one `Affine` with the effect of this map followed by `following`. `normalize` flags are ignored.

        The matrices are multiplied in float64. The bias is None if neither map has one.
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
    removed: Tensor

    def __init__(self, removed: Tensor, bias: Tensor | None = None, normalize: bool = False) -> None:
        identity = torch.eye(removed.shape[1], dtype=removed.dtype, device=removed.device)
        super().__init__(identity - removed.T @ removed, bias, normalize)
        self.register_buffer("removed", removed)

    def forward(self, x: Tensor) -> Tensor:
        """Return x − Σ(x·uᵢ)uᵢ + b for rows x, `(n, d)` to `(n, d)`, L2-normalized if `normalize`.

        Zero rows, and outputs that are only rounding error, become zero.
        """
        y = x - (x @ self.removed.T) @ self.removed
        if self.bias is not None:
            y = y + self.bias
        return (normalize_outputs if self.normalize else drop_rounding_residue)(y, x, self.gain)

    def normalized(self) -> "Projection":
        """Return a `Projection` that is this map followed by L2 normalization."""
        return Projection(self.removed, self.bias, normalize=True)


class InverseAffine(Map):
    """Inverse of an affine transform: y ↦ By + μ, with B `(d, k)` or None for the identity, and μ `(d,)` or None for 0.

    Unlike `Affine`, it maps zero rows to μ, because the transform maps its mean to zero.
    """

    kind = "inverse_affine"
    weight: Tensor | None
    offset: Tensor | None

    def __init__(self, weight: Tensor | None, offset: Tensor | None) -> None:
        super().__init__(weight=weight, offset=offset)

    def forward(self, x: Tensor) -> Tensor:
        """Return By + μ for rows y, `(n, k)` to `(n, d)`.

        If B is None it is the identity, and if μ is None nothing is added.
        """
        y = x if self.weight is None else multiply_rows(x, self.weight)
        return y if self.offset is None else y + self.offset


def translation(offset: Tensor) -> Affine:
    """Return the map x ↦ x + offset as an `Affine` whose weight is the identity in float64."""
    return Affine(torch.eye(len(offset), dtype=torch.float64, device=offset.device), offset)


def _estimate_spectral_norm(weight: Tensor) -> float:
    """Estimate the spectral norm (largest singular value) of a weight `(k, d)`, by power iteration from a fixed start.

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
    """Return the pseudo-inverse W⁺ `(d, k)` of a weight `(k, d)` that is a float64 copy of a float32 one.

    Singular values within float32 rounding of zero count as zero.
    """
    # The default tolerance follows the dtype: float64's would invert the rounding error of float32 entries.
    inverse: Tensor = torch.linalg.pinv(weight, rtol=max(weight.shape) * torch.finfo(torch.float32).eps)
    return inverse


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
    weight: Tensor
    mean: Tensor

    def __init__(self, centered: bool = False, renormalize: bool = False) -> None:
        super().__init__()
        self.centered = centered
        self.renormalize = renormalize
        self._gain_of_weight: tuple[Tensor, float] | None = None
        if not centered:
            del self.mean

    def set_map(self, weight: Tensor, mean: Tensor | None = None) -> None:
        """Set the weight, and the mean if one is given.

        Both are stored as float32.
        """
        self.weight = weight.float()
        if mean is not None:
            self.mean = mean.float()

    @property
    def gain(self) -> float:
        """Spectral norm of the weight, estimated by power iteration and cached until the weight is replaced."""
        # Compared by identity: a fit, `restore` and `.to` assign a new tensor, and reading numbers makes a GPU wait.
        if self._gain_of_weight is None or self._gain_of_weight[0] is not self.weight:
            self._gain_of_weight = (self.weight, _estimate_spectral_norm(self.weight))
        return self._gain_of_weight[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return W(x − μ), or Wx if not centred, `(n, d)` to `(n, k)`.

        Rows are then L2-normalized if `renormalize`. Zero rows, and outputs that are only rounding error, become zero.
        """
        y = functional.linear(x - self.mean if self.centered else x, self.weight)
        return (normalize_outputs if self.renormalize else drop_rounding_residue)(y, x, self.gain)

    def primitives(self) -> list[Map]:
        """Return a list of one float64 `Affine` with the weight W and the bias −Wμ.

        `Normalize` follows it if `renormalize`.
        """
        weight = self.weight.double()
        bias = -(weight @ self.mean.double()) if self.centered else None
        return [Affine(weight, bias), *([Normalize()] if self.renormalize else [])]

    @property
    def inverse_kind(self) -> Inverse:  # type: ignore[override]  # depends on the weight
        """How well the map can be inverted: `"exact"`, `"approximate"` or `"none"`.

        It is `"none"` if outputs are renormalized, `"exact"` if the map is fitted and W has rank d, else
        `"approximate"`. Renormalizing loses the row norms; a rank below d loses directions.
        """
        if self.renormalize:
            return "none"
        return "exact" if self.fitted and self._retains_all_directions() else "approximate"

    @property
    def learned_directions(self) -> int:
        """Number of rows of the weight, k, which is 0 before the fit."""
        return self.weight.shape[0]

    def inverse(self) -> Map:
        """Return the map y ↦ W⁺y + μ from outputs back to inputs, with the pseudo-inverse W⁺, without μ if not centred.

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
        """Return whether the weight `(k, d)` has rank d, so that inputs can be recovered exactly."""
        k, d = self.weight.shape
        # Orthogonal rows have full rank unless one is zero; `matrix_rank` would not count rows far shorter than others.
        if k == d and self.orthogonal_rows:
            return bool(self.weight.any(dim=1).all())
        return k >= d and int(torch.linalg.matrix_rank(self.weight)) == d


class Normalize(Transform):
    """L2 normalization, x / ‖x‖.

    Zero rows stay zero. Nothing is learned, and the norms are lost.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import Normalize
        >>> rows = np.array([[3, 4], [0, 0]], np.float32)
        >>> Normalize().transform(rows)
        array([[0.6, 0.8],
               [0. , 0. ]], dtype=float32)
    """

    kind = "normalize"

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature (dimensions, rank) of the inputs unchanged, because normalizing keeps the dimensions."""
        return inputs

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Do nothing, because normalization has no fitted state."""

    def forward(self, x: Tensor) -> Tensor:
        """Return rows divided by their L2 norms, `(n, d)` to `(n, d)`.

        Near-zero rows become zeros.
        """
        return unit_rows(x)
