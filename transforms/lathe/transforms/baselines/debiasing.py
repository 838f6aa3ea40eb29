"""Controls of the debiasing papers: a random direction, mean centering, and mean subtraction with renormalization."""

import numpy as np
import torch
from torch import Tensor

from lathe.transforms.base import FLAG, SEED, FitContext, Inverse, Map, Signature, Transform
from lathe.transforms.linear.affine import InverseAffine, Normalize, translation
from lathe.transforms.linear.debias import DirectionRemoval, list_mean_warnings
from lathe.transforms.statistics import (
    Moments,
    dimensions_of,
    drop_rounding_residue,
    moments_of,
    normalize_outputs,
    norms_of,
    unit_moments,
    unit_rows,
)
from lathe.transforms.vectors import Vectors


class RandomDirection(DirectionRemoval):
    """Removal of one random direction, drawn by `seed`, followed by L2 normalization: the control that R2 must beat."""

    kind = "rand"
    parameter_rules = {"seed": SEED}

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Draw a uniformly random unit direction `(d,)` with `seed`.

        Of the data, only d is used.
        """
        # Normal entries, because they have no preferred direction; uniform entries favour the diagonals of the cube.
        direction = np.random.default_rng(self.seed).standard_normal(dimensions_of(data))
        self.direction = torch.from_numpy(direction / np.linalg.norm(direction)).float()


class MeanCentering(Transform):
    """Mean centering e − μ, without normalization: the control that shows what renormalizing adds.

    μ is the mean of the rows as they are. If the outputs of a chain must not be normalized, turn the chain's own
    normalization off. Can be inverted exactly.
    """

    kind = "mc"
    shapes = {"mean": ("d",)}

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.empty(0))

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the input signature unchanged: centering keeps the dimensions."""
        return inputs

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Store the mean of the rows, computed in float64, as float32.

        The rows are not normalized first.
        """
        moments = moments_of(data)
        self.mean = torch.from_numpy(moments.mean).float()

    def forward(self, x: Tensor) -> Tensor:
        """Return x − μ, `(n, d)` to `(n, d)`.

        Zero rows, and outputs that are only rounding error, become zero.
        """
        return drop_rounding_residue(x - self.mean, x)

    def primitives(self) -> list[Map]:
        """Return the translation by −μ as a list of one float64 `Affine`."""
        return [translation(-self.mean.double())]

    @property
    def inverse_kind(self) -> Inverse:
        """Always `"exact"`: adding the mean back undoes the centering."""
        return "exact"

    def inverse(self) -> Map:
        """Return the inverse y ↦ y + μ."""
        return InverseAffine(None, self.mean)


class R1(Transform):
    """Mean subtraction from normalized rows, followed by L2 normalization if `renormalize`.

    e' = (e − μ) / ‖e − μ‖: R1 of *Correcting Mean Bias in Text Embeddings*, Eq. 1, which writes e for unit vectors. So
    rows are normalized before both the fit and the subtraction; moments are taken as they are.
    """

    kind = "r1"
    parameter_rules = {"renormalize": FLAG}
    shapes = {"mean": ("d",), "noise_floor": ()}

    def __init__(self, renormalize: bool = True) -> None:
        super().__init__()
        self.renormalize = renormalize
        self.mean: Tensor
        self.noise_floor: Tensor
        self.register_buffer("mean", torch.empty(0))
        self.register_buffer("noise_floor", torch.empty(0))

    @property
    def mean_norm(self) -> Tensor:
        """Norm of the mean, ‖μ‖, as a scalar tensor."""
        return norms_of(self.mean)[0]

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the input signature unchanged: subtracting the mean keeps the dimensions."""
        return inputs

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute and store the mean, and the norm that chance alone would give it (its noise floor). Rows are
        normalized first, moments are taken as they are.

        Computed in float64, stored in float32.
        """
        moments = data if isinstance(data, Moments) else unit_moments(data)
        self.mean = torch.from_numpy(moments.mean).float()
        self.noise_floor = torch.tensor(moments.noise_floor(), dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize rows, subtract the mean, and normalize again if `renormalize`, `(n, d)` to `(n, d)`.

        Zero rows, and outputs that are only rounding error, become zero.
        """
        unit = unit_rows(x)
        return (normalize_outputs if self.renormalize else drop_rounding_residue)(unit - self.mean, unit)

    def primitives(self) -> list[Map]:
        """Return `Normalize`, the translation by −μ as an `Affine`, and a second `Normalize` if `renormalize`."""
        return [Normalize(), translation(-self.mean.double()), *([Normalize()] if self.renormalize else [])]

    def fit_warnings(self) -> list[str]:
        """Return a one-item list with a warning if ‖μ‖ < `MIN_MEAN_NORM` × noise floor, else an empty list."""
        return list_mean_warnings(self.kind, self.mean_norm, self.noise_floor)
