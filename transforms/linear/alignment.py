"""Bringing one encoder's vectors into another's space, fitted on the same texts in both."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from transforms.base.signature import Outline
from transforms.base.transform import Run, Transform
from transforms.base.validation import require_between, require_flag, require_whole
from transforms.errors import InputError
from transforms.linear.affine import Affine
from transforms.linear.linear import Back, Linear, pseudo_inverse
from transforms.linear.normalize import drop_rounding_residue
from transforms.statistics.moments import Moments
from transforms.statistics.paired_moments import PairedMoments
from transforms.statistics.spectrum import Spectrum
from transforms.vectors import Vectors


class Alignment(Linear, registered=False):
    """x ↦ W(x − μ_x) + μ_y, or x ↦ Wx, fitted on pairs of a vector and its target.

    Fit with `fit(vectors, targets=…)` or on `PairedMoments`. To search an index of an old
    encoder's vectors with a new encoder, the new one's are the vectors, the old one's the targets.
    """

    paired = True

    def __init__(self, centered: bool) -> None:
        super().__init__(centered=centered)
        if centered:
            self.target_mean: Tensor
            self.register_buffer("target_mean", torch.empty(0))

    def after(self, before: Outline) -> Outline:
        """The width of the targets; unknown before the fit unless they were named."""
        width = before.targets if before.targets is not None else self.weight.shape[0] if self.fitted else None
        if width is None or before.width is None:
            return replace(before, width=width)
        return replace(before, width=width, missing=max(0, width - self.rank_after(before.width - before.missing)))

    def rank_after(self, rank: int) -> int:
        """The rank of the outputs, for inputs of that rank."""
        return rank

    def set_pairs(self, weight: torch.Tensor, moments: PairedMoments) -> None:
        """Keep the weight, and the means if it is centred."""
        self.set_map(weight, torch.from_numpy(moments.source_mean()) if self.centered else None)
        if self.centered:
            self.target_mean = torch.from_numpy(moments.target_mean()).float()

    def forward(self, x: Tensor) -> Tensor:
        """Map rows, `(n, d)` to `(n, k)`; zero stays zero."""
        if not self.centered:
            return super().forward(x)
        return drop_rounding_residue(functional.linear(x - self.mean, self.weight) + self.target_mean, x, self.gain)

    def primitives(self) -> list[Transform]:
        """The affine map."""
        weight = self.weight.double()
        if not self.centered:
            return [Affine(weight)]
        return [Affine(weight, self.target_mean.double() - weight @ self.mean.double())]

    def inverse(self) -> Transform:
        """The map y ↦ W⁺(y − μ_y) + μ_x."""
        back = pseudo_inverse(self.weight.double())
        offset = self.mean - back @ self.target_mean.double() if self.centered else None
        return Back(back.float(), None if offset is None else offset.float())


class Procrustes(Alignment):
    """The orthogonal map that brings vectors closest to their targets: lengths and angles stay.

    W = VUᵀ with XᵀY = UΣVᵀ (Schönemann, 1966). Between widths that differ, its smaller side is
    orthogonal. With `center`, the means are subtracted before and added after.
    """

    kind = "procrustes"

    def __init__(self, center: bool = False) -> None:
        require_flag(self.kind, "center", center)
        super().__init__(center)
        self.center = center

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """From the cross moment of the pairs, float64."""
        moments = require_pairs(data)
        _, cross = moments.blocks(centered=self.center)
        left, _, right = np.linalg.svd(cross, full_matrices=False)
        self.set_pairs(torch.from_numpy((left @ right).T.copy()), moments)


class LowRankAffine(Alignment):
    """The affine map of rank r with the smallest squared error to the targets.

    Reduced-rank regression (Izenman, 1975): the ridge regression B = (C_xx + ρI)⁻¹C_xy, projected
    on the top r eigenvectors of C_xyᵀB. Drift-Adapter (arXiv 2509.23471) learns such a map by
    descent; this is its closed form.

    Args:
        rank: r, at most the width of the targets; None is the full rank.
        ridge: ρ in units of tr(C_xx)/d.
    """

    kind = "low_rank_affine"

    def __init__(self, rank: int | None = None, ridge: float = 1e-3) -> None:
        if rank is not None:
            require_whole(self.kind, "rank", rank, at_least=1)
        require_between(self.kind, "ridge", ridge, 0, 1e6)
        super().__init__(centered=True)
        self.rank = rank
        self.ridge = ridge

    def rank_after(self, rank: int) -> int:
        """At most r."""
        return rank if self.rank is None else min(rank, self.rank)

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """From the centred moments of the pairs, float64.

        Raises:
            InputError: if the vectors do not vary, or not in every direction while the ridge is 0.
        """
        moments = require_pairs(data)
        own, cross = moments.blocks(centered=True)
        level = own.trace() / len(own)
        if self.rank is not None and self.rank > cross.shape[1]:
            raise InputError(f"{self.kind} of rank {self.rank} needs targets at least that wide, not {cross.shape[1]}")
        if level <= moments.rounding():
            raise InputError(f"{self.kind} needs vectors that differ: there is nothing to regress on")
        if self.ridge == 0 and Spectrum.of(own, moments.rounding()).rank < len(own):
            raise InputError(
                f"{self.kind} without a ridge needs vectors that vary in all {len(own)} directions, these "
                f"{moments.count} rows do not: set a ridge above 0, or fit on more"
            )
        regression = np.linalg.solve(own + self.ridge * level * np.eye(len(own)), cross)
        kept = Spectrum.of(cross.T @ regression).directions[: self.rank]
        self.set_pairs(torch.from_numpy(kept.T @ (kept @ regression.T)), moments)


def require_pairs(data: Moments | Vectors) -> PairedMoments:
    """The moments of pairs, which `fit` made of what it was given."""
    assert isinstance(data, PairedMoments)
    return data
