"""Removing the direction that all embeddings share, and the controls to compare that with."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transforms.base.signature import Outline
from transforms.base.transform import Inverse, Run, Transform
from transforms.base.transformed_view import SharedVectors
from transforms.base.validation import require_flag, require_seed
from transforms.errors import InputError, StepError
from transforms.linear.affine import Affine
from transforms.linear.linear import Back
from transforms.linear.normalize import Normalize, drop_rounding_residue, norms_of, unit_image, unit_rows
from transforms.statistics.moments import Moments, merged, moments_of, width_of
from transforms.vectors import FloatArray, Vectors, row_blocks


class DirectionRemoval(Transform, registered=False):
    """x − (x·u)u for one unit direction u, then to unit length.

    A row parallel to u becomes 0 and stays 0. The output has rank d−1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.direction: Tensor
        self.register_buffer("direction", torch.empty(0))

    def after(self, before: Outline) -> Outline:
        """One direction less.

        Raises:
            StepError: for vectors of width 1, which have nothing left off a direction.
        """
        if before.width == 1:
            raise StepError(f"{self.kind} needs vectors at least 2 wide: off one direction a number has nothing left")
        return before.without(1)

    def forward(self, x: Tensor) -> Tensor:
        """Project rows, `(n, d)` to `(n, d)`."""
        return unit_image(x - (x @ self.direction).unsqueeze(-1) * self.direction, x)

    def primitives(self) -> list[Transform]:
        """The projection I − uuᵀ and a normalisation."""
        direction = self.direction.double()
        identity = torch.eye(len(direction), dtype=torch.float64, device=direction.device)
        return [Affine(identity - torch.outer(direction, direction)), Normalize()]


class R2(DirectionRemoval):
    """Project off the mean direction, then renormalise.

    e' = (e − (e·μ̂)μ̂) / ‖e − (e·μ̂)μ̂‖ with μ̂ = μ/‖μ‖: R2 of *Correcting Mean Bias in Text
    Embeddings*, Eq. 1. To first order it cancels the parallel part of the error in estimating μ,
    which subtracting μ (R1) keeps (Eq. 2 there).

    μ is the mean of **unit** vectors: rows given to `fit` are normalised first, moments are taken
    as they are. A row parallel to μ̂ becomes 0 and stays 0. The output has rank d−1.
    """

    kind = "r2"
    learns_from = "unit moments"

    def __init__(self) -> None:
        super().__init__()
        self.mean_norm: Tensor
        self.noise_floor: Tensor
        self.register_buffer("mean_norm", torch.empty(0))
        self.register_buffer("noise_floor", torch.empty(0))

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """Estimate μ̂; float64 throughout, stored in float32.

        Raises:
            InputError: if the mean is exactly zero, so that it has no direction.
        """
        moments = data if isinstance(data, Moments) else unit_moments(data)
        norm = moments.mean_norm()
        if norm == 0:
            raise InputError("the mean of these vectors is exactly zero: it has no direction to project off")
        self.direction = torch.from_numpy(moments.mean / norm).float()
        self.mean_norm = torch.tensor(norm, dtype=torch.float32)
        self.noise_floor = torch.tensor(moments.noise_floor(), dtype=torch.float32)


class RandomDirection(DirectionRemoval):
    """Project off one random direction, N(0, I) by `seed`: the control that R2 must beat."""

    kind = "rand"
    learns_from = "nothing"

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        require_seed(self.kind, seed)
        self.seed = seed

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """Draw the direction; of the data only the width counts."""
        direction = np.random.default_rng(self.seed).standard_normal(width_of(data))
        self.direction = torch.from_numpy(direction / np.linalg.norm(direction)).float()


class MeanCentering(Transform):
    """e − μ and nothing else: the control that shows what renormalising adds.

    μ is the mean of the rows as they are. Within a chain that must stay as it is, turn the
    chain's own normalisation off. Undone exactly.
    """

    kind = "mc"
    learns_from = "moments"

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.empty(0))

    def after(self, before: Outline) -> Outline:
        """Nothing changes."""
        return before

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """The mean, float64, stored in float32."""
        moments = moments_of(data)
        self.mean = torch.from_numpy(moments.mean).float()

    def forward(self, x: Tensor) -> Tensor:
        """Centre rows, `(n, d)` to `(n, d)`; zero stays zero."""
        return drop_rounding_residue(x - self.mean, x)

    def primitives(self) -> list[Transform]:
        """The shift by −μ."""
        return [shift(-self.mean.double())]

    @property
    def inverse_kind(self) -> Inverse:
        """Exact: the mean is added back."""
        return "exact"

    def inverse(self) -> Transform:
        """The mean added back."""
        return Back(None, self.mean)


class R1(Transform):
    """Subtract the mean, then renormalise.

    e' = (e − μ) / ‖e − μ‖: R1 of *Correcting Mean Bias in Text Embeddings*, Eq. 1, which writes e
    for unit vectors. So rows are brought to unit length before both the fit and the subtraction;
    moments are taken as they are.
    """

    kind = "r1"
    learns_from = "unit moments"

    def __init__(self, renormalize: bool = True) -> None:
        super().__init__()
        require_flag(self.kind, "renormalize", renormalize)
        self.renormalize = renormalize
        self.mean: Tensor
        self.noise_floor: Tensor
        self.register_buffer("mean", torch.empty(0))
        self.register_buffer("noise_floor", torch.empty(0))

    @property
    def mean_norm(self) -> Tensor:
        """‖μ‖."""
        return norms_of(self.mean)[0]

    def after(self, before: Outline) -> Outline:
        """Nothing changes."""
        return before

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """The mean of unit rows, float64, stored in float32."""
        moments = data if isinstance(data, Moments) else unit_moments(data)
        self.mean = torch.from_numpy(moments.mean).float()
        self.noise_floor = torch.tensor(moments.noise_floor(), dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """Debias rows, `(n, d)` to `(n, d)`; zero stays zero."""
        unit = unit_rows(x)
        return (unit_image if self.renormalize else drop_rounding_residue)(unit - self.mean, unit)

    def primitives(self) -> list[Transform]:
        """A normalisation, the shift by −μ, and another normalisation if there is one."""
        return [Normalize(), shift(-self.mean.double()), *([Normalize()] if self.renormalize else [])]


def shift(offset: Tensor) -> Affine:
    """X + offset as an affine map, for folding."""
    return Affine(torch.eye(len(offset), dtype=torch.float64, device=offset.device), offset)


def unit_moments(vectors: Vectors) -> Moments:
    """Moments of the rows after L2 normalisation, streamed."""
    if isinstance(vectors, SharedVectors):
        return merged(vectors.block_moments(unit=True))
    moments = Moments()
    for block in row_blocks(vectors):
        moments.update(at_unit_length(block))
    return moments


def at_unit_length(block: FloatArray) -> NDArray[np.float64]:
    """Rows `(n, d)` in float64 after L2 normalisation."""
    unit: NDArray[np.float64] = unit_rows(torch.from_numpy(block.astype(np.float64))).numpy()
    return unit
