"""All-but-the-Top: subtracting the mean, and removing the directions of largest variance."""

import torch
from torch import Tensor

from lathe.transforms.base import FitContext, Inverse, Map, Signature, Transform, require_flag, require_whole
from lathe.transforms.errors import StepError
from lathe.transforms.linear.affine import InverseAffine, Projection
from lathe.transforms.linear.normalize import Normalize
from lathe.transforms.statistics import Moments, Spectrum, drop_rounding_residue, moments_of, unit_image
from lathe.transforms.vectors import Vectors


class ABTT(Transform):
    """ABTT-D: subtract the mean μ, remove the top D centred principal directions uᵢ, then renormalize.

    Mu and Viswanath, *All-but-the-Top* (2018); D is `directions`, by default d/100 and at least 1. By default
    y = ṽ − Σ(ṽ·uᵢ)uᵢ with ṽ = v − μ, as the text of the mean-bias paper says. With `literal`, y = ṽ − Σ(v·uᵢ)uᵢ, as the
    algorithm is printed and some public implementations have it, which leaves a constant −Σ(μ·uᵢ)uᵢ in every vector.
    Rows are not normalized before the fit.
    """

    kind = "abtt"
    shapes = {"mean": ("d",), "removed": ("r", "d")}

    def __init__(self, directions: int | None = None, literal: bool = False, renormalize: bool = True) -> None:
        super().__init__()
        self.directions = directions
        self.literal = literal
        self.renormalize = renormalize
        self.mean: Tensor
        self.removed: Tensor
        self.register_buffer("mean", torch.empty(0))
        self.register_buffer("removed", torch.empty(0))

    def check_parameters(self) -> None:
        """Check the parameters of the step. Raises `StepError` unless `directions` is None or a positive integer, and
        the two flags are bools.
        """
        if self.directions is not None:
            require_whole(self.kind, "directions", self.directions, at_least=1)
        require_flag(self.kind, "literal", self.literal)
        require_flag(self.kind, "renormalize", self.renormalize)

    def removed_count(self, dimensions: int) -> int:
        """Return D, the number of directions to remove.

        It is `directions`, or d/100 (rounded, at least 1) if not set.
        """
        return self.directions or max(1, round(dimensions / 100))

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature of the outputs: that of the inputs with D more directions without variance.

        One direction fewer is added if both `literal` and `renormalize` are set, because normalizing turns the constant
        that the literal form leaves into a direction again. While the input dimensions are unknown, D is `directions`
        or 1.

        Raises:
            StepError: if the inputs have no more than D dimensions.
        """
        restored = int(self.literal and self.renormalize)
        if inputs.dimensions is None:
            return inputs.add_zero_variance((self.directions or 1) - restored)

        count = self.removed_count(inputs.dimensions)
        if count >= inputs.dimensions:
            raise StepError(
                f"{self.kind} removes {count} directions: it needs vectors of more dimensions than {inputs.dimensions}"
            )

        return inputs.add_zero_variance(count - restored)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute the mean and the top D eigenvectors of the covariance, in float64, and store them as float32.

        Raises:
            InputError: if the vectors vary in fewer than D directions.
        """
        moments = moments_of(data)
        count = self.removed_count(moments.dimensions)
        spectrum = Spectrum.of(moments.covariance(ddof=0), moments.rounding_variance())
        spectrum.require_rank(self.kind, count, moments.count)
        self.mean = torch.from_numpy(moments.mean).float()
        self.removed = torch.from_numpy(spectrum.directions[:count].copy()).float()

    def forward(self, x: Tensor) -> Tensor:
        """Subtract the mean from rows `(n, d)` and project off the D removed directions. Rows are then normalized if
        `renormalize`. Returns rows `(n, d)`.

        With `literal`, the projection on the directions is that of the rows before centering. Zero rows, and outputs
        that are only rounding error, become zero.
        """
        centred = x - self.mean
        # Two thin products cost 2dD per row; the projection matrix would cost d².
        y = centred - ((x if self.literal else centred) @ self.removed.T) @ self.removed
        return (unit_image if self.renormalize else drop_rounding_residue)(y, x)

    @property
    def inverse_kind(self) -> Inverse:
        """`"none"` if outputs are renormalized (row norms are lost), else `"approximate"` (directions are lost)."""
        return "none" if self.renormalize else "approximate"

    def inverse(self) -> Map:
        """Return the approximate inverse y ↦ y + μ, which adds the mean back.

        The removed directions stay lost.
        """
        return InverseAffine(None, self.mean)

    def primitives(self) -> list[Map]:
        """Return the map as a list: one float64 `Projection`, and `Normalize` if `renormalize`."""
        mean, removed = self.mean.double(), self.removed.double()
        # With the projection P: P(x − μ) = Px − Pμ, but the literal form is x − μ − Σ(x·uᵢ)uᵢ = Px − μ.
        kept = mean if self.literal else mean - removed.T @ (removed @ mean)
        return [Projection(removed, -kept), *([Normalize()] if self.renormalize else [])]
