"""Maps from one encoder's vector space to another's, fitted on vectors of the same texts from both encoders."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lathe.transforms.base import FLAG, FitContext, Map, Signature, number, or_none, whole_number
from lathe.transforms.errors import InputError
from lathe.transforms.linear.affine import Affine, InverseAffine, Linear, pseudo_inverse
from lathe.transforms.statistics import Moments, PairedMoments, Spectrum, drop_rounding_residue
from lathe.transforms.vectors import Vectors


class Alignment(Linear, registered=False):
    """Base class of x ↦ W(x − μ_x) + μ_y, or x ↦ Wx if not centred, fitted on pairs of a vector and its target.

    Fit with `fit(vectors, targets=…)` or on `PairedMoments`. To search an index of an old encoder's vectors with a new
    encoder, fit on the new encoder's vectors, with the old encoder's vectors of the same texts as targets.
    """

    paired = True
    shapes = {**Linear.shapes, "target_mean": ("k",)}
    target_mean: Tensor

    def __init__(self, centered: bool) -> None:
        super().__init__(centered=centered)
        if not centered:
            del self.target_mean

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature of the outputs, with the dimensions of the targets, None if they are not known.

        The dimensions are `inputs.target_dimensions`, else the output dimensions of the fitted weight, and None if
        neither is known. Directions beyond `output_rank` are counted as directions without variance.
        """
        fitted = self.weight.shape[0] if self.fitted else None
        dimensions = fitted if inputs.target_dimensions is None else inputs.target_dimensions
        if dimensions is None or inputs.dimensions is None:
            return replace(inputs, dimensions=dimensions)
        rank = self.output_rank(inputs.dimensions - inputs.zero_variance_directions)
        return replace(inputs, dimensions=dimensions, zero_variance_directions=max(0, dimensions - rank))

    def output_rank(self, rank: int) -> int:
        """Return the rank of the outputs for inputs of the given rank.

        It is the same, unless a subclass limits it.
        """
        return rank

    def set_pair_map(self, weight: torch.Tensor, moments: PairedMoments) -> None:
        """Set the weight and, if the map is centred, the means of vectors and targets.

        All are stored as float32.
        """
        self.set_map(weight, torch.from_numpy(moments.source_mean()) if self.centered else None)
        if self.centered:
            self.target_mean = torch.from_numpy(moments.target_mean()).float()

    def forward(self, x: Tensor) -> Tensor:
        """Map vectors to the embedding space of the targets, `(n, d)` to `(n, k)`.

        The outputs are W(x − μ_x) + μ_y, or Wx if not centred. Zero rows, and outputs that are only rounding error,
        become zero.
        """
        if not self.centered:
            return super().forward(x)
        return drop_rounding_residue(functional.linear(x - self.mean, self.weight) + self.target_mean, x, self.gain)

    def primitives(self) -> list[Map]:
        """Return a list of one float64 `Affine`, whose bias μ_y − Wμ_x holds both means."""
        weight = self.weight.double()
        if not self.centered:
            return [Affine(weight)]
        return [Affine(weight, self.target_mean.double() - weight @ self.mean.double())]

    def inverse(self) -> Map:
        """Return the map y ↦ W⁺(y − μ_y) + μ_x from targets back to vectors, with the pseudo-inverse W⁺.

        It is y ↦ W⁺y if not centred.
        """
        inverse = pseudo_inverse(self.weight.double())
        offset = self.mean - inverse @ self.target_mean.double() if self.centered else None
        return InverseAffine(inverse.float(), None if offset is None else offset.float())


class Procrustes(Alignment):
    """Orthogonal map W that brings vectors closest to their targets.

    Norms and angles stay. W = VUᵀ with XᵀY = UΣVᵀ (Schönemann, 1966). If the dimensions differ, W is orthogonal on its
    smaller side only. With `center`, μ_x is subtracted before the map and μ_y added after it.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import Procrustes
        >>> rows = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
        >>> rotated = rows[:, [1, 2, 3, 0]]
        >>> step = Procrustes().fit(rows, targets=rotated)
        >>> bool(np.allclose(step.transform(rows), rotated, atol=1e-4))
        True
    """

    kind = "procrustes"
    parameter_rules = {"center": FLAG}

    def __init__(self, center: bool = False) -> None:
        super().__init__(center)
        self.center = center

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute the orthogonal map that brings the vectors closest to their targets, and store it as the weight.

        The weight `(k, d)` is VUᵀ, with XᵀY = UΣVᵀ the SVD of the pairs' cross moment, which is centred if `center`.
        """
        assert isinstance(data, PairedMoments)  # `fit` has made them from vectors and targets
        _, cross = data.blocks(centered=self.center)
        # NumPy returns U and Vᵀ, so W = VUᵀ is (UVᵀ)ᵀ. A mean instead of the sum XᵀY scales only Σ, which W lacks.
        left_vectors, _, right_vectors = np.linalg.svd(cross, full_matrices=False)
        self.set_pair_map(torch.from_numpy((left_vectors @ right_vectors).T.copy()), data)


class LowRankAffine(Alignment):
    """Affine map of rank r with the smallest squared error to the targets.

    Reduced-rank regression (Izenman, 1975): the ridge regression B = (C_xx + ρI)⁻¹C_xy, projected on the top r
    eigenvectors of C_xyᵀB. Drift-Adapter (arXiv 2509.23471) learns such a map by gradient descent; this is its closed
    form.

    Args:
        rank: r, at most the dimensions of the targets; None is the full rank.
        ridge: ρ in units of tr(C_xx)/d.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import LowRankAffine
        >>> rows = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
        >>> targets = rows[:, :3] * 2 + 5
        >>> step = LowRankAffine(rank=3, ridge=0).fit(rows, targets=targets)
        >>> bool(np.allclose(step.transform(rows), targets, atol=1e-3))
        True
    """

    kind = "low_rank_affine"
    parameter_rules = {"rank": or_none(whole_number(1)), "ridge": number(0, 1e6)}

    def __init__(self, rank: int | None = None, ridge: float = 1e-3) -> None:
        super().__init__(centered=True)
        self.rank = rank
        self.ridge = ridge

    def output_rank(self, rank: int) -> int:
        """Return the rank of the outputs for inputs of the given rank.

        It is the same, but at most `self.rank` if that is set.
        """
        return rank if self.rank is None else min(rank, self.rank)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute the weight by reduced-rank ridge regression of targets on vectors, and store it. Equal vectors raise.

        Both means are stored too. Everything is computed in float64 from the centred moments of the pairs.

        Raises:
            InputError: if r exceeds the dimensions of the targets, or if the vectors do not vary, or not in every
                direction while the ridge is 0.
        """
        assert isinstance(data, PairedMoments)  # `fit` has made them from vectors and targets
        moments = data
        input_moment, cross = moments.blocks(centered=True)
        level = input_moment.trace() / len(input_moment)
        if self.rank is not None and self.rank > cross.shape[1]:
            raise InputError(
                f"{self.kind} of rank {self.rank} needs targets of at least as many dimensions, not {cross.shape[1]}"
            )
        if level <= moments.rounding_variance():
            raise InputError(f"{self.kind} needs vectors that differ: there is nothing to regress on")
        # `np.linalg.solve` raises no error for a matrix that rounding alone makes invertible, and returns noise.
        if self.ridge == 0 and Spectrum.from_matrix(input_moment, moments.rounding_variance()).rank < len(input_moment):
            raise InputError(
                f"{self.kind} without a ridge needs vectors that vary in all {len(input_moment)} directions, these "
                f"{moments.count} rows do not: set a ridge above 0, or fit on more"
            )

        regression = np.linalg.solve(input_moment + self.ridge * level * np.eye(len(input_moment)), cross)
        top = Spectrum.from_matrix(cross.T @ regression).directions[: self.rank]
        # W = VᵀV·Bᵀ with V `(r, k)`: multiplied from the right it costs 2rkd; VᵀV first would cost k²d.
        self.set_pair_map(torch.from_numpy(top.T @ (top @ regression.T)), moments)
