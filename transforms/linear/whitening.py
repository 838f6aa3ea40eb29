"""Whitening: equal variance in every direction, fully or in part."""

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from transforms.base.signature import Outline
from transforms.base.transform import Run
from transforms.base.validation import require_between, require_choice, require_flag, require_whole
from transforms.errors import InputError, StepError
from transforms.linear.linear import Linear
from transforms.statistics.moments import Moments, moments_of
from transforms.statistics.spectrum import NOTHING, Spectrum
from transforms.vectors import Vectors

Form = Literal["pca", "zca"]

FEW = 20
"""One direction in this many, and one in any case, may be empty in vectors of an encoder."""

SOFT = 1e-3
"""An ε, relative to tr(C)/d, or a shrinkage, that lengthens rounding error no more than thirtyfold."""


class Whitening(Linear):
    """y = (x − μ) U (Λ + ε)^{−p/2}, then renormalised; C = UΛUᵀ is the covariance (ddof=1).

    The mean-bias paper finds that full whitening hurts every model it tests (its Table 2); its
    setting is `epsilon=1e-6, relative=false`. Softer ones, or fewer directions, hurt less.

    A direction without variance cannot be scaled to one. The small default ε bounds what becomes of
    the few that encoders have (MiniLM has 3 of 384). Without it they are refused, and after steps
    that are known to empty directions it is not enough: `dimensions`, `rcond`, `shrinkage` or a
    relative ε of at least 1e-3 must say what to do.

    Args:
        dimensions: keep the top k directions only. `pca` then gives k numbers, `zca` all d, of rank k.
        form: `pca` rotates to the principal directions (every prefix is the whitening of that
            size); `zca` rotates back, U(Λ + ε)^{−p/2}Uᵀ, and stays closest to the vectors.
        power: p; 1 whitens, 0 only rotates, between is soft.
        epsilon: added to the variances, in units of tr(C)/d. An absolute one hardly whitens unit
            vectors of many dimensions.
        relative: false takes `epsilon` as it is.
        shrinkage: a weight from 0 to 1 towards the equal spectrum tr(C)/d, or `ledoit-wolf` to
            have it chosen (Ledoit and Wolf, 2004), for few rows. The covariance then has ddof=0.
        rcond: directions with less variance than this times the largest come out as 0.
        renormalize: bring outputs to unit length.
    """

    kind = "whitening"
    learns_from = "moments"

    def __init__(
        self,
        dimensions: int | None = None,
        form: Form = "pca",
        power: float = 1.0,
        epsilon: float = 1e-8,
        relative: bool = True,
        shrinkage: float | Literal["ledoit-wolf"] | None = None,
        rcond: float | None = None,
        renormalize: bool = True,
    ) -> None:
        if dimensions is not None:
            require_whole(self.kind, "dimensions", dimensions, at_least=1)
        require_choice(self.kind, "form", form, get_args(Form))
        require_between(self.kind, "power", power, 0, 2)
        require_between(self.kind, "epsilon", epsilon, 0, 1e6)
        require_flag(self.kind, "relative", relative)
        if isinstance(shrinkage, str) and shrinkage != "ledoit-wolf":
            raise StepError(f"{self.kind}: shrinkage must be ledoit-wolf or a number from 0 to 1, got {shrinkage!r}")
        if not isinstance(shrinkage, str | None):
            require_between(self.kind, "shrinkage", shrinkage, 0, 1)
        if rcond is not None:
            require_between(self.kind, "rcond", rcond, 0, 1)
        require_flag(self.kind, "renormalize", renormalize)
        super().__init__(centered=True, renormalize=renormalize)
        self.dimensions = dimensions
        self.form = form
        self.power = power
        self.epsilon = epsilon
        self.relative = relative
        self.shrinkage = shrinkage
        self.rcond = rcond

    @property
    def nested(self) -> bool:
        """Whether a prefix of the output is the whitening of that size."""
        return self.form == "pca"

    @property
    def orthogonal_rows(self) -> bool:  # type: ignore[override]  # by form here, not by class
        """Whether the rows of the weight are orthogonal."""
        return self.form == "pca"

    @property
    def regular(self) -> bool:
        """Whether directions that are known to be empty do no harm."""
        shrunk = isinstance(self.shrinkage, str) or (self.shrinkage or 0) >= SOFT
        softened = self.relative and self.epsilon >= SOFT  # what an absolute ε amounts to, only the data tells
        return self.rcond is not None or self.power == 0 or shrunk or softened

    def after(self, before: Outline) -> Outline:
        """The size reduced to; zca keeps the width.

        Raises:
            StepError: if earlier steps left directions empty and nothing says what to do with them.
        """
        kept = before if self.dimensions is None else before.reduced(self.kind, self.dimensions)
        if kept.missing and not self.regular:
            most = "" if before.width is None else f" ({self.kind}:{before.width - before.missing} or fewer)"
            raise StepError(
                f"{self.kind} cannot follow steps that leave {before.missing} of the directions without variance: it "
                f"would blow up rounding error; give the dimensions to keep{most}, or rcond, or shrinkage, "
                f"or a relative epsilon of {SOFT:g} or more"
            )
        if self.form == "pca":
            return kept
        dropped = 0 if self.dimensions is None or before.width is None else before.width - self.dimensions
        return replace(before, missing=kept.missing + dropped)

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """Directions and scales from the moments, float64.

        Raises:
            InputError: if a direction to be scaled has no variance and nothing says what to do then.
        """
        moments = moments_of(data)
        spectrum = Spectrum.of(self.covariance(moments), moments.rounding())
        kept = self.dimensions or moments.dimensions
        if not self.regular:  # ε takes care of the few directions that an encoder leaves empty, not of few rows
            spectrum.require(self.kind, kept - (max(1, kept // FEW) if self.epsilon else 0), moments.count)
        directions, scales = spectrum.directions[:kept], self.scales(spectrum)[:kept]
        weight = scales[:, None] * directions
        if self.form == "zca":
            weight = directions.T @ weight
        self.set_map(torch.from_numpy(weight), torch.from_numpy(moments.mean))

    def covariance(self, moments: Moments) -> NDArray[np.float64]:
        """The covariance, shrunk if so said."""
        if self.shrinkage is None:
            return moments.covariance()
        weight = ledoit_wolf(moments) if self.shrinkage == "ledoit-wolf" else float(self.shrinkage)
        covariance = moments.covariance(ddof=0)
        level = covariance.trace() / moments.dimensions
        shrunk: NDArray[np.float64] = (1 - weight) * covariance + weight * level * np.eye(moments.dimensions)
        return shrunk

    def scales(self, spectrum: Spectrum) -> NDArray[np.float64]:
        """The factor of each direction `(d,)`; 0 for those that are dropped."""
        values, total = spectrum.values, spectrum.values.sum()
        if total == 0:
            raise InputError(f"{self.kind} needs rows that differ: there is no variance to equalise")
        ridge = self.epsilon * (total / len(values) if self.relative else 1.0)
        floor = max(NOTHING * total, (self.rcond or 0) * values[0])
        dropped = values <= floor
        if self.rcond is None and (ridge > 0 or self.power == 0):
            dropped = np.zeros_like(dropped)
        factors: NDArray[np.float64] = np.where(dropped, 1.0, values + ridge)
        factors **= -self.power / 2
        factors[dropped] = 0
        return factors


def ledoit_wolf(moments: Moments) -> float:
    """The weight of the equal spectrum that Ledoit and Wolf (2004, Lemma 3.3) choose, 0 to 1."""
    n, d = moments.count, moments.dimensions
    covariance = moments.covariance(ddof=0)
    squares = float((covariance * covariance).sum())
    spread = squares - float(covariance.trace()) ** 2 / d
    noise = min((moments.fourth / n - squares) / n, spread)
    return noise / spread if spread > 0 else 0.0
