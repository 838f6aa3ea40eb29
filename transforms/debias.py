"""Removing the direction that all embeddings share."""

import numpy as np
import torch
from torch import Tensor

from transforms.affine import Affine
from transforms.arrays import Vectors, row_blocks
from transforms.errors import InputError, StepError
from transforms.moments import Moments
from transforms.normalize import Normalize, drop_rounding_residue, unit_rows
from transforms.transform import Progress, Transform


class R2(Transform):
    """Project off the mean direction, then renormalise.

    e' = (e − (e·μ̂)μ̂) / ‖e − (e·μ̂)μ̂‖ with μ̂ = μ/‖μ‖: R2 of *Correcting Mean Bias in Text
    Embeddings*, Eq. 1. To first order it cancels the parallel part of the error in estimating μ,
    which subtracting μ (R1) keeps (Eq. 2 there).

    μ is the mean of **unit** vectors: rows given to `fit` are normalised first, moments are taken
    as they are. A row parallel to μ̂ becomes 0 and stays 0. The output has rank d−1.
    """

    kind = "r2"

    def __init__(self) -> None:
        super().__init__()
        self.direction: Tensor
        self.mean_norm: Tensor
        self.noise_floor: Tensor
        self.register_buffer("direction", torch.empty(0))
        self.register_buffer("mean_norm", torch.empty(0))
        self.register_buffer("noise_floor", torch.empty(0))

    def width_after(self, dimensions: int) -> int:
        """The width does not change.

        Raises:
            StepError: for vectors of width 1, which have nothing left off their mean direction.
        """
        if dimensions < 2:
            raise StepError("r2 needs vectors at least 2 wide: off its mean direction a number has nothing left")
        return dimensions

    def learn(self, data: Moments | Vectors, on_progress: Progress) -> None:
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

    def forward(self, x: Tensor) -> Tensor:
        """Debias rows, `(n, d)` to `(n, d)`."""
        along = (x @ self.direction).unsqueeze(-1) * self.direction
        return unit_rows(drop_rounding_residue(x - along, x))

    def primitives(self) -> list[Transform]:
        """The projection I − μ̂μ̂ᵀ and a normalisation."""
        direction = self.direction.double()
        identity = torch.eye(len(direction), dtype=torch.float64, device=direction.device)
        return [Affine(identity - torch.outer(direction, direction)), Normalize()]


def unit_moments(vectors: Vectors) -> Moments:
    """Moments of the rows after L2 normalisation, streamed."""
    moments = Moments()
    for block in row_blocks(vectors):
        moments.update(unit_rows(torch.from_numpy(block.astype(np.float64))).numpy())
    return moments
