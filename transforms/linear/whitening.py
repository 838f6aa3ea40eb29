"""Whitening: equal variance in every direction, fully or in part."""

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from transforms.base import FitContext, Signature, require_between, require_choice, require_flag, require_whole
from transforms.errors import InputError, StepError
from transforms.linear.linear import Linear
from transforms.statistics import NOTHING, Moments, Spectrum, moments_of
from transforms.vectors import Vectors

Form = Literal["pca", "zca"]

ALLOWED_EMPTY = 20
"""One direction in this many, and at least one, may be without variance in the vectors of an encoder."""

MIN_REGULARIZATION = 1e-3
"""An ε, relative to tr(C)/d, or a shrinkage, that lengthens rounding error no more than thirtyfold."""


class Whitening(Linear):
    """y = (x − μ) U (Λ + ε)^{−p/2}, then renormalized; C = UΛUᵀ is the covariance (ddof=1).

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
        super().__init__(centered=True, renormalize=renormalize)
        self.dimensions = dimensions
        self.form = form
        self.power = power
        self.epsilon = epsilon
        self.relative = relative
        self.shrinkage = shrinkage
        self.rcond = rcond

    def check_parameters(self) -> None:
        """Raise `StepError` for a parameter out of range."""
        if self.dimensions is not None:
            require_whole(self.kind, "dimensions", self.dimensions, at_least=1)
        require_choice(self.kind, "form", self.form, get_args(Form))
        require_between(self.kind, "power", self.power, 0, 2)
        require_between(self.kind, "epsilon", self.epsilon, 0, 1e6)
        require_flag(self.kind, "relative", self.relative)
        if isinstance(self.shrinkage, str) and self.shrinkage != "ledoit-wolf":
            raise StepError(
                f"{self.kind}: shrinkage must be ledoit-wolf or a number from 0 to 1, got {self.shrinkage!r}"
            )
        if not isinstance(self.shrinkage, str | None):
            require_between(self.kind, "shrinkage", self.shrinkage, 0, 1)
        if self.rcond is not None:
            require_between(self.kind, "rcond", self.rcond, 0, 1)
        require_flag(self.kind, "renormalize", self.renormalize)

    @property
    def nested(self) -> bool:  # type: ignore[override]  # depends on the form
        """Whether a prefix of the output is the whitening of that many dimensions."""
        return self.form == "pca"

    @property
    def chooses_axes(self) -> bool:
        """Whether the outputs are coordinates along the principal directions."""
        return self.form == "pca"

    @property
    def needs_higher_moments(self) -> bool:
        """Whether the shrinkage is chosen from fourth moments."""
        return isinstance(self.shrinkage, str)

    @property
    def orthogonal_rows(self) -> bool:  # type: ignore[override]  # depends on the form
        """Whether the rows of the weight are orthogonal to one another."""
        return self.form == "pca"

    @property
    def regularized(self) -> bool:
        """Whether directions without variance are scaled by a bounded factor."""
        shrunk = isinstance(self.shrinkage, str) or (self.shrinkage or 0) >= MIN_REGULARIZATION
        softened = self.relative and self.epsilon >= MIN_REGULARIZATION  # an absolute ε can only be judged by the data
        return self.rcond is not None or self.power == 0 or shrunk or softened

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the reduced signature; `zca` keeps the dimensions and loses rank.

        Raises:
            StepError: if earlier steps left directions without variance and no parameter says what to do with them.
        """
        reduced = inputs if self.dimensions is None else inputs.reduce(self.kind, self.dimensions)
        if reduced.empty_directions and not self.regularized:
            rank = "" if inputs.dimensions is None else inputs.dimensions - inputs.empty_directions
            limit = f" ({self.kind}:{rank} or fewer)" if rank else ""
            raise StepError(
                f"{self.kind} cannot follow steps that leave {inputs.empty_directions} directions without variance: it "
                f"would amplify rounding error; give the dimensions to keep{limit}, or rcond, or shrinkage, "
                f"or a relative epsilon of {MIN_REGULARIZATION:g} or more"
            )
        if self.form == "pca":
            return reduced
        dropped = 0 if self.dimensions is None or inputs.dimensions is None else inputs.dimensions - self.dimensions
        return replace(inputs, empty_directions=reduced.empty_directions + dropped)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute directions and scales from the moments in float64.

        Raises:
            InputError: if a direction to be scaled has no variance and no parameter says what to do then.
        """
        moments = moments_of(data)
        spectrum = Spectrum.of(self._covariance(moments), moments.rounding())
        dimensions = self.dimensions or moments.dimensions
        if not self.regularized:  # ε takes care of the few directions that an encoder leaves empty, not of few rows
            allowed = max(1, dimensions // ALLOWED_EMPTY) if self.epsilon else 0
            spectrum.require_rank(self.kind, dimensions - allowed, moments.count)
        directions, scales = spectrum.directions[:dimensions], self._scales(spectrum)[:dimensions]
        weight = scales[:, None] * directions
        if self.form == "zca":
            weight = directions.T @ weight
        self.set_map(torch.from_numpy(weight), torch.from_numpy(moments.mean))

    def _covariance(self, moments: Moments) -> NDArray[np.float64]:
        """Return the covariance `(d, d)`, shrunk towards the equal spectrum if `shrinkage` is set."""
        if self.shrinkage is None:
            return moments.covariance()
        weight = ledoit_wolf_weight(moments) if self.shrinkage == "ledoit-wolf" else float(self.shrinkage)
        covariance = moments.covariance(ddof=0)
        level = covariance.trace() / moments.dimensions
        shrunk: NDArray[np.float64] = (1 - weight) * covariance + weight * level * np.eye(moments.dimensions)
        return shrunk

    def _scales(self, spectrum: Spectrum) -> NDArray[np.float64]:
        """Return the factor of each direction `(d,)`; 0 for directions that are dropped."""
        values, total = spectrum.values, spectrum.values.sum()
        if total == 0:
            raise InputError(f"{self.kind} needs rows that differ: there is no variance to equalize")
        ridge = self.epsilon * (total / len(values) if self.relative else 1.0)
        floor = max(NOTHING * total, (self.rcond or 0) * values[0])
        dropped = values <= floor
        if self.rcond is None and (ridge > 0 or self.power == 0):
            dropped = np.zeros_like(dropped)
        factors: NDArray[np.float64] = np.where(dropped, 1.0, values + ridge)
        factors **= -self.power / 2
        factors[dropped] = 0
        return factors


def ledoit_wolf_weight(moments: Moments) -> float:
    """Return the shrinkage weight that Ledoit and Wolf (2004, Lemma 3.3) choose, from 0 to 1."""
    n, d = moments.count, moments.dimensions
    covariance = moments.covariance(ddof=0)
    squares = float((covariance * covariance).sum())
    spread = squares - float(covariance.trace()) ** 2 / d
    noise = min((moments.fourth / n - squares) / n, spread)
    return noise / spread if spread > 0 else 0.0
