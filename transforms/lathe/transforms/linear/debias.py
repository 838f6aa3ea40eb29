"""Removal of the mean direction that all embeddings share."""

import torch
from torch import Tensor

from lathe.transforms.base import FitContext, Map, Signature, Transform
from lathe.transforms.errors import InputError, StepError
from lathe.transforms.linear.affine import Projection
from lathe.transforms.linear.normalize import Normalize
from lathe.transforms.statistics import Moments, unit_image, unit_moments
from lathe.transforms.vectors import Vectors

MIN_MEAN_NORM = 2.0
"""Multiple of the noise floor below which ‖μ‖ is so short that a fit warns: its direction may be chance."""


class DirectionRemoval(Transform, registered=False):
    """Base class of x − (x·u)u for one unit direction u `(d,)`, followed by L2 normalization.

    A row parallel to u becomes 0 and stays 0. The output has rank d−1.
    """

    shapes = {"direction": ("d",)}

    def __init__(self) -> None:
        super().__init__()
        self.direction: Tensor
        self.register_buffer("direction", torch.empty(0))

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature of the outputs: that of the inputs with one more direction without variance.

        Raises:
            StepError: if the inputs have one dimension, because nothing would be left.
        """
        if inputs.dimensions == 1:
            raise StepError(f"{self.kind} removes a direction: it needs vectors of at least 2 dimensions, not 1")
        return inputs.add_zero_variance(1)

    def forward(self, x: Tensor) -> Tensor:
        """Remove the direction u from rows and normalize them, `(n, d)` to `(n, d)`.

        Rows parallel to u become zero.
        """
        return unit_image(x - (x @ self.direction).unsqueeze(-1) * self.direction, x)

    def primitives(self) -> list[Map]:
        """Return the map as a list: the projection I − uuᵀ as a float64 `Projection`, and `Normalize`."""
        return [Projection(self.direction.double().unsqueeze(0)), Normalize()]


class R2(DirectionRemoval):
    """Removal of the mean direction, followed by L2 normalization.

    e' = (e − (e·μ̂)μ̂) / ‖e − (e·μ̂)μ̂‖ with μ̂ = μ/‖μ‖: R2 of *Correcting Mean Bias in Text Embeddings*, Eq. 1. To
    first order it cancels the parallel part of the error in estimating μ, which subtracting μ (R1) keeps (Eq. 2 there).

    μ is the mean of **unit** vectors: rows given to `fit` are normalized first, moments are taken as they are. A row
    parallel to μ̂ becomes 0 and stays 0. The output has rank d−1.

    Attributes:
        direction: μ̂, `(d,)`.
        mean_norm: ‖μ‖, a scalar tensor.
        noise_floor: expected ‖μ‖ if the true mean were zero, a scalar tensor.
    """

    kind = "r2"
    shapes = {**DirectionRemoval.shapes, "mean_norm": (), "noise_floor": ()}
    # `forward` need not normalize first: removal and normalization give the same for any positive multiple of a row.

    def __init__(self) -> None:
        super().__init__()
        self.mean_norm: Tensor
        self.noise_floor: Tensor
        self.register_buffer("mean_norm", torch.empty(0))
        self.register_buffer("noise_floor", torch.empty(0))

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute and store the direction of the mean, its norm ‖μ‖, and the norm that chance alone would give. Rows
        are normalized first, moments are taken as they are.

        Computed in float64, stored in float32.

        Raises:
            InputError: if the mean is exactly zero, so that it has no direction.
        """
        moments = data if isinstance(data, Moments) else unit_moments(data)
        norm = moments.mean_norm()
        # Only an exact zero is an error: a short mean has a direction, and `fit_warnings` says that it may be chance.
        if norm == 0:
            raise InputError("the mean of these vectors is exactly zero: it has no direction to project off")

        self.direction = torch.from_numpy(moments.mean / norm).float()
        self.mean_norm = torch.tensor(norm, dtype=torch.float32)
        self.noise_floor = torch.tensor(moments.noise_floor(), dtype=torch.float32)

    def fit_warnings(self) -> list[str]:
        """Return a one-item list with a warning if ‖μ‖ < `MIN_MEAN_NORM` × noise floor, else an empty list."""
        return mean_warnings(self.kind, self.mean_norm, self.noise_floor)


def mean_warnings(kind: str, mean_norm: Tensor, noise_floor: Tensor) -> list[str]:
    """Return a list with one warning if the mean is so short that chance could explain it, else an empty list.

    It could if ‖μ‖ < `MIN_MEAN_NORM` × noise floor, the norm that chance alone gives.
    """
    if float(mean_norm) >= MIN_MEAN_NORM * float(noise_floor):
        return []
    return [
        f"the mean direction is within its noise: ‖μ‖ is {float(mean_norm):.3f}, "
        f"chance alone gives {float(noise_floor):.3f}; fit on more text or leave {kind} out"
    ]
