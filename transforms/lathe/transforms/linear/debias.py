"""Removal of directions that all embeddings share: the mean direction, or the directions of largest variance.

All-but-the-Top subtracts the mean and removes the directions of largest variance.
"""

import torch
from torch import Tensor

from lathe.transforms.base import FLAG, FitContext, Map, Signature, Transform, or_none, whole_number
from lathe.transforms.errors import InputError, StepError
from lathe.transforms.linear.affine import InverseAffine, Normalize, Projection
from lathe.transforms.statistics import (
    Moments,
    Spectrum,
    drop_rounding_residue,
    moments_of,
    normalize_outputs,
    unit_moments,
)
from lathe.transforms.vectors import Vectors

MIN_MEAN_NORM = 2.0
"""Multiple of the noise floor below which ‖μ‖ is so short that a fit warns: its direction may be chance."""


class DirectionRemoval(Transform, registered=False):
    """Base class of the removal of one unit direction u `(d,)`, x − (x·u)u, followed by L2 normalization.

    A row parallel to u becomes 0 and stays 0. The output has rank d−1.
    """

    shapes = {"direction": ("d",)}

    direction: Tensor

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature (dimensions, rank) of the inputs, with one more direction without variance.

        Raises:
            StepError: if the inputs have one dimension, because nothing would be left.
        """
        if inputs.dimensions == 1:
            raise StepError(f"{self.kind} removes a direction: it needs vectors of at least 2 dimensions, not 1")
        return inputs.add_zero_variance(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return rows without their component along the direction u, L2-normalized, `(n, d)` to `(n, d)`.

        Rows parallel to u become zero.
        """
        return normalize_outputs(x - (x @ self.direction).unsqueeze(-1) * self.direction, x)

    def primitives(self) -> list[Map]:
        """Return the projection I − uuᵀ as a float64 `Projection`, followed by `Normalize`."""
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

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import R2
        >>> rows = np.random.default_rng(0).normal(1, 1, size=(200, 8)).astype(np.float32)
        >>> step = R2().fit(rows)
        >>> bool(abs(step.transform(rows) @ step.direction.numpy()).max() < 1e-6)
        True
        >>> float(step.mean_norm) > 10 * float(step.noise_floor)
        True
    """

    kind = "r2"
    shapes = {**DirectionRemoval.shapes, "mean_norm": (), "noise_floor": ()}
    mean_norm: Tensor
    noise_floor: Tensor
    # `forward` need not normalize first: removal and normalization give the same for any positive multiple of a row.

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute and store the direction and norm ‖μ‖ of the mean, and the norm by chance. A mean of zero raises.

        Rows are L2-normalized first, but moments are taken as they are. Computed in float64, stored in float32.

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
        """Return a list with one warning if ‖μ‖ < `MIN_MEAN_NORM` × noise floor, else an empty list."""
        return list_mean_warnings(self.kind, self.mean_norm, self.noise_floor)


def list_mean_warnings(kind: str, mean_norm: Tensor, noise_floor: Tensor) -> list[str]:
    """Return a list with one warning if ‖μ‖ < `MIN_MEAN_NORM` × noise floor, else an empty list.

    The noise floor is the norm that the mean would have by chance.
    """
    if float(mean_norm) >= MIN_MEAN_NORM * float(noise_floor):
        return []
    return [
        f"the mean direction is within its noise: ‖μ‖ is {float(mean_norm):.3f}, "
        f"chance alone gives {float(noise_floor):.3f}; fit on more text or leave {kind} out"
    ]


class ABTT(Transform):
    """ABTT-D: subtract the mean μ, remove the top D centred principal directions uᵢ, then renormalize.

    Mu and Viswanath, *All-but-the-Top* (2018); D is `directions`, by default d/100 and at least 1. By default y = ṽ −
    Σ(ṽ·uᵢ)uᵢ with ṽ = v − μ, as the text of the mean-bias paper says. With `literal`, y = ṽ − Σ(v·uᵢ)uᵢ, as the
    algorithm is printed and some public implementations have it, which leaves a constant −Σ(μ·uᵢ)uᵢ in every vector.
    Rows are not normalized before the fit.

    Args:
        directions: D, the number of directions to remove; None for d/100, at least 1.
        literal: whether the vector is projected before centering, as the algorithm is printed.
        renormalize: whether outputs are L2-normalized.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import ABTT
        >>> rows = np.random.default_rng(0).normal(1, 1, size=(200, 8)).astype(np.float32)
        >>> cleaned = ABTT(directions=2, renormalize=False).fit(rows).transform(rows)
        >>> int(np.linalg.matrix_rank(cleaned, tol=1e-3))
        6
        >>> bool(abs(cleaned.mean(axis=0)).max() < 1e-5)
        True
    """

    kind = "abtt"
    parameter_rules = {"directions": or_none(whole_number(1)), "literal": FLAG, "renormalize": FLAG}
    shapes = {"mean": ("d",), "removed": ("r", "d")}
    mean: Tensor
    removed: Tensor

    def __init__(self, directions: int | None = None, literal: bool = False, renormalize: bool = True) -> None:
        super().__init__()
        self.directions = directions
        self.literal = literal
        self.renormalize = renormalize
        # Renormalized outputs lose the norms of the rows, others only the removed directions.
        self.inverse_kind = "none" if renormalize else "approximate"

    def removed_count(self, dimensions: int) -> int:
        """Return D, the number of directions to remove from vectors of `dimensions` dimensions.

        D is `directions`, or d/100 (rounded, at least 1) if `directions` is None.
        """
        return self.directions or max(1, round(dimensions / 100))

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the inputs' signature with D or D − 1 more zero-variance directions. D or fewer dimensions raise.

        It is D − 1 if both `literal` and `renormalize` are set, because normalizing turns the constant that the literal
        form leaves into a direction that varies. While the input dimensions are unknown, D is `directions` or 1.

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
        """Compute and store the mean and top D eigenvectors of the covariance. Raise for fewer directions of variance.

        Raises:
            InputError: if the vectors vary in fewer than D directions.
        """
        moments = moments_of(data)
        count = self.removed_count(moments.dimensions)
        spectrum = Spectrum.from_matrix(moments.covariance(ddof=0), moments.rounding_variance())
        spectrum.require_rank(self.kind, count, moments.count)
        self.mean = torch.from_numpy(moments.mean).float()
        self.removed = torch.from_numpy(spectrum.directions[:count].copy()).float()

    def forward(self, x: Tensor) -> Tensor:
        """Subtract the mean and the components along the D removed directions from rows, `(n, d)` to `(n, d)`.

        The rows are then L2-normalized if `renormalize`. With `literal`, the components are taken of the rows before
        centering. Zero rows, and outputs that are only rounding error, become zero.
        """
        centred = x - self.mean
        # Two thin products cost 2dD per row; the projection matrix would cost d².
        y = centred - ((x if self.literal else centred) @ self.removed.T) @ self.removed
        return (normalize_outputs if self.renormalize else drop_rounding_residue)(y, x)

    def inverse(self) -> Map:
        """Return the approximate inverse y ↦ y + μ, which adds the mean.

        The removed directions stay lost.
        """
        return InverseAffine(None, self.mean)

    def primitives(self) -> list[Map]:
        """Return a list of one float64 `Projection`, followed by `Normalize` if `renormalize`."""
        mean, removed = self.mean.double(), self.removed.double()
        # With the projection P: P(x − μ) = Px − Pμ, but the literal form is x − μ − Σ(x·uᵢ)uᵢ = Px − μ.
        offset = mean if self.literal else mean - removed.T @ (removed @ mean)
        return [Projection(removed, -offset), *([Normalize()] if self.renormalize else [])]
