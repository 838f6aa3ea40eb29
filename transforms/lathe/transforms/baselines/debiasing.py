"""Controls of the debiasing papers: a random direction, mean centering, and mean subtraction with renormalization."""

import numpy as np
import torch
from torch import Tensor

from lathe.transforms.base import FLAG, SEED, FitContext, Map, Signature, Transform
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
    """Removal of one random direction, drawn by `seed`, followed by L2 normalization: the control that R2 must beat.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import RandomDirection
        >>> rows = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
        >>> step = RandomDirection(seed=1).fit(rows)
        >>> bool(abs(step.transform(rows) @ step.direction.numpy()).max() < 1e-6)
        True
    """

    kind = "rand"
    parameter_rules = {"seed": SEED}

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Draw a unit direction `(d,)` uniformly at random by `seed`, and store it.

        Of the data, only the number of dimensions is used.
        """
        # Normal entries, because they have no preferred direction; uniform entries favour the diagonals of the cube.
        direction = np.random.default_rng(self.seed).standard_normal(dimensions_of(data))
        self.direction = torch.from_numpy(direction / np.linalg.norm(direction)).float()


class MeanCentering(Transform):
    """Mean centering x − μ, without normalization: the control that shows what renormalizing adds.

    μ is the mean of the rows as they are. If the outputs of a chain must not be normalized, turn the chain's own
    normalization off. Can be inverted exactly.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import MeanCentering
        >>> rows = np.array([[1, 2], [3, 6]], np.float32)
        >>> MeanCentering().fit(rows).transform(rows)
        array([[-1., -2.],
               [ 1.,  2.]], dtype=float32)
    """

    kind = "mc"
    inverse_kind = "exact"  # adding the mean back undoes the centering
    shapes = {"mean": ("d",)}

    mean: Tensor

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature (dimensions, rank) of the inputs unchanged, because centering keeps the dimensions."""
        return inputs

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute the mean of the rows in float64, and store it as float32.

        Rows are not normalized first.
        """
        moments = moments_of(data)
        self.mean = torch.from_numpy(moments.mean).float()

    def forward(self, x: Tensor) -> Tensor:
        """Return x − μ for rows x, `(n, d)` to `(n, d)`.

        Zero rows, and outputs that are only rounding error, become zero.
        """
        return drop_rounding_residue(x - self.mean, x)

    def primitives(self) -> list[Map]:
        """Return a list of one float64 `Affine`, the translation by −μ."""
        return [translation(-self.mean.double())]

    def inverse(self) -> Map:
        """Return the exact inverse, y ↦ y + μ."""
        return InverseAffine(None, self.mean)


class R1(Transform):
    """Mean subtraction from normalized rows, followed by L2 normalization if `renormalize`.

    e' = (e − μ) / ‖e − μ‖: R1 of *Correcting Mean Bias in Text Embeddings*, Eq. 1, which writes e for unit vectors. So
    rows are normalized before both the fit and the subtraction; moments are taken as they are.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import R1, Moments
        >>> rows = np.random.default_rng(0).normal(1, 1, size=(500, 8)).astype(np.float32)
        >>> debiased = R1().fit(rows).transform(rows)
        >>> Moments.from_vectors(debiased).mean_norm() < 0.1
        True
    """

    kind = "r1"
    parameter_rules = {"renormalize": FLAG}
    shapes = {"mean": ("d",), "noise_floor": ()}
    mean: Tensor
    noise_floor: Tensor

    def __init__(self, renormalize: bool = True) -> None:
        super().__init__()
        self.renormalize = renormalize

    @property
    def mean_norm(self) -> Tensor:
        """Norm of the mean, ‖μ‖, as a scalar tensor."""
        return norms_of(self.mean)[0]

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature (dimensions, rank) of the inputs, because subtracting the mean keeps the dimensions."""
        return inputs

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute the mean of the rows and the norm it would have by chance (its noise floor), and store both.

        Rows are L2-normalized first, but moments are taken as they are. Computed in float64, stored in float32.
        """
        moments = data if isinstance(data, Moments) else unit_moments(data)
        self.mean = torch.from_numpy(moments.mean).float()
        self.noise_floor = torch.tensor(moments.noise_floor(), dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """Return rows normalized, minus the mean, and normalized again if `renormalize`, `(n, d)` to `(n, d)`.

        Zero rows, and outputs that are only rounding error, become zero.
        """
        # μ was measured on unit rows, so it is subtracted from unit rows.
        unit = unit_rows(x)
        return (normalize_outputs if self.renormalize else drop_rounding_residue)(unit - self.mean, unit)

    def primitives(self) -> list[Map]:
        """Return `Normalize`, the translation by −μ as an `Affine`, and a second `Normalize` if `renormalize`."""
        return [Normalize(), translation(-self.mean.double()), *([Normalize()] if self.renormalize else [])]

    def fit_warnings(self) -> list[str]:
        """Return a list with one warning if ‖μ‖ < `MIN_MEAN_NORM` × noise floor, else an empty list."""
        return list_mean_warnings(self.kind, self.mean_norm, self.noise_floor)
