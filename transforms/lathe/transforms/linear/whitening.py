"""Whitening: scaling all principal directions to equal variance, fully or in part."""

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lathe.transforms.base import FLAG, FitContext, Signature, number, one_of, or_none, or_word, whole_number
from lathe.transforms.errors import InputError, StepError
from lathe.transforms.linear.affine import Linear
from lathe.transforms.statistics import RANK_TOLERANCE, Moments, Spectrum, compute_tempered_power, moments_of
from lathe.transforms.vectors import Vectors

Form = Literal["pca", "zca"]
"""Axes of the whitened vectors: the principal directions, or the original axes."""

AUTO = "auto"
"""Power that the fit derives from the eigenvalues."""

ALLOWED_EMPTY = 20
"""Regularized by a small ε alone, a fit accepts one zero-variance direction in this many, and at least one."""

MIN_REGULARIZATION = 1e-3
"""Smallest shrinkage, or ε relative to tr(C)/d, that limits the amplification of rounding error to thirtyfold."""


class Whitening(Linear):
    """Whitening y = (x − μ) U (Λ + ε)^{−p/2}, then L2-normalized.

    C = UΛUᵀ is the covariance (ddof=1).

    The mean-bias paper finds that full whitening hurts every model it tests (its Table 2); its
    setting is `epsilon=1e-6, relative=false`. Softer whitening, or fewer directions, hurts less.

    A direction without variance cannot be scaled to unit variance. The small default ε is enough for the
    few that encoders leave (MiniLM has 3 of 384); with `epsilon=0` they are refused. After steps that are
    known to empty directions the default is not enough: set `dimensions`, `rcond`, `shrinkage` or a
    relative ε of at least 1e-3.

    Args:
        dimensions: number of top directions to keep, k. `pca` then outputs k dimensions, `zca` all d, of rank k.
        form: `pca` rotates to the principal directions (every prefix is the whitening of that
            size); `zca` rotates back, U(Λ + ε)^{−p/2}Uᵀ, and stays closest to the vectors.
        power: p; 1 whitens fully, 0 only rotates, values between whiten in part. `auto` derives p from the eigenvalues
            and k alone, by spectral tempering (`lathe.transforms.statistics.spectrum`); a prefix of the outputs then
            has the p of all k dimensions.
        epsilon: ε, added to the variances, in units of tr(C)/d. An absolute ε hardly whitens unit
            vectors of many dimensions.
        relative: whether `epsilon` is in units of tr(C)/d; if false, it is added as it is.
        shrinkage: weight from 0 to 1 of tr(C)/d · I, which the covariance is averaged with, or
            `ledoit-wolf` to choose the weight from the data (Ledoit and Wolf, 2004); helps if rows
            are few. The covariance then has ddof=0.
        rcond: directions whose variance is at most this fraction of the largest are set to 0.
        renormalize: whether outputs are L2-normalized.

    Attributes:
        chosen_power: the p that `auto` derived, a scalar; a buffer with `auto` only.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import Whitening
        >>> rows = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32) * [4, 3, 2, 1]
        >>> step = Whitening(renormalize=False).fit(rows)
        >>> bool(np.allclose(np.cov(step.transform(rows).T), np.eye(4), atol=1e-3))
        True
    """

    kind = "whitening"
    parameter_rules = {
        "dimensions": or_none(whole_number(1)),
        "form": one_of(*get_args(Form)),
        "power": or_word(AUTO, number(0, 2)),
        "epsilon": number(0, 1e6),
        "relative": FLAG,
        "shrinkage": or_none(or_word("ledoit-wolf", number(0, 1))),
        "rcond": or_none(number(0, 1)),
        "renormalize": FLAG,
    }
    shapes = {**Linear.shapes, "chosen_power": ()}
    chosen_power: Tensor

    def __init__(
        self,
        dimensions: int | None = None,
        form: Form = "pca",
        power: float | Literal["auto"] = 1.0,
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

        if power != AUTO:
            del self.chosen_power

    @property
    def nested(self) -> bool:  # type: ignore[override]  # depends on the form
        """Whether a prefix of the output is the whitening of that many dimensions: true for the form `pca`."""
        return self.form == "pca"

    @property
    def orthogonal_rows(self) -> bool:  # type: ignore[override]  # depends on the form
        """Whether the rows of the weight are mutually orthogonal: true for the form `pca`."""
        return self.form == "pca"

    @property
    def regularized(self) -> bool:
        """Whether the parameters bound the scaling of directions without variance.

        Shrinkage and a relative ε of at least `MIN_REGULARIZATION` do, and so do `rcond` and power 0.
        """
        shrunk = isinstance(self.shrinkage, str) or (self.shrinkage or 0) >= MIN_REGULARIZATION
        softened = self.relative and self.epsilon >= MIN_REGULARIZATION  # an absolute ε can only be judged by the data
        return self.rcond is not None or self.power == 0 or shrunk or softened

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the inputs' signature, of rank `dimensions` at most. Unregularized zero-variance directions raise.

        With the form `zca` the number of dimensions stays, and only the rank is reduced.

        Raises:
            StepError: if the inputs have too few dimensions, or if zero-variance directions remain and no parameter
                regularizes them.
        """
        reduced = inputs if self.dimensions is None else inputs.reduce(self.kind, self.dimensions)
        if reduced.zero_variance_directions and not self.regularized:
            rank = "" if inputs.dimensions is None else inputs.dimensions - inputs.zero_variance_directions
            limit = f" ({self.kind}:{rank} or fewer)" if rank else ""
            raise StepError(
                f"{self.kind} cannot follow steps that leave {inputs.zero_variance_directions} directions without "
                f"variance: it would amplify rounding error; give the dimensions to keep{limit}, or rcond, or "
                f"shrinkage, or a relative epsilon of {MIN_REGULARIZATION:g} or more"
            )

        if self.form == "pca":
            return reduced

        # `zca` rotates back to all d axes, so that the directions it drops stay as directions without variance.
        dropped = 0 if self.dimensions is None or inputs.dimensions is None else inputs.dimensions - self.dimensions
        return replace(inputs, zero_variance_directions=reduced.zero_variance_directions + dropped)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute and store weight and mean from the moments. Too many directions without variance raise.

        The weight holds the principal directions, scaled by (λ + ε)^{−p/2}. For `zca` it also rotates back to the
        original axes.

        Raises:
            InputError: if the rows do not vary, or if more directions have no variance than ε alone can handle.
        """
        moments = moments_of(data)
        spectrum = Spectrum.from_matrix(self._compute_covariance(moments), moments.rounding_variance())
        dimensions = self.dimensions or moments.dimensions

        if not self.regularized:  # ε takes care of the few directions that an encoder leaves empty, not of few rows
            allowed = max(1, dimensions // ALLOWED_EMPTY) if self.epsilon else 0
            spectrum.require_rank(self.kind, dimensions - allowed, moments.count)

        power = compute_tempered_power(spectrum.values, dimensions) if isinstance(self.power, str) else self.power
        directions, scales = spectrum.directions[:dimensions], self._compute_scales(spectrum, power)[:dimensions]
        weight = scales[:, None] * directions

        if self.form == "zca":
            weight = directions.T @ weight

        self.set_map(torch.from_numpy(weight), torch.from_numpy(moments.mean))
        if self.power == AUTO:
            self.chosen_power = torch.tensor(power, dtype=torch.float32)

    def chosen_parameters(self) -> dict[str, float]:
        """Return the power that the fit derived from the eigenvalues, as `{"power": p}`.

        The dict is empty if the power was given.
        """
        return {"power": float(self.chosen_power)} if self.power == AUTO else {}

    def _compute_covariance(self, moments: Moments) -> NDArray[np.float64]:
        """Return the covariance `(d, d)` with ddof=1, or with ddof=0 and shrunk if `shrinkage` is set.

        With `shrinkage` it is the covariance with ddof=0, shrunk towards tr(C)/d · I.
        """
        if self.shrinkage is None:
            return moments.covariance()

        weight = compute_shrinkage_weight(moments) if self.shrinkage == "ledoit-wolf" else float(self.shrinkage)
        # ddof=0, because Ledoit and Wolf's sample covariance divides by n.
        covariance = moments.covariance(ddof=0)
        level = covariance.trace() / moments.dimensions
        shrunk: NDArray[np.float64] = (1 - weight) * covariance + weight * level * np.eye(moments.dimensions)

        return shrunk

    def _compute_scales(self, spectrum: Spectrum, power: float) -> NDArray[np.float64]:
        """Return the scale `(d,)` of each principal direction: (λ + ε)^{−p/2}, or 0 if dropped. Zero variance raises.

        Directions are dropped if their variance is at most `rcond` times the largest. Without `rcond`, zero-variance
        directions are dropped only if ε is 0 and the power is not.

        Raises:
            InputError: if the total variance is zero.
        """
        values, total = spectrum.values, spectrum.values.sum()
        if total == 0:
            raise InputError(f"{self.kind} needs rows that differ: there is no variance to equalize")

        ridge = self.epsilon * (total / len(values) if self.relative else 1.0)
        floor = max(RANK_TOLERANCE * total, (self.rcond or 0) * values[0])
        dropped = values <= floor

        if self.rcond is None and (ridge > 0 or power == 0):
            dropped = np.zeros_like(dropped)

        # 1 stands in for dropped variances, because 0 to a negative power is inf, with a warning.
        factors: NDArray[np.float64] = np.where(dropped, 1.0, values + ridge)
        factors **= -power / 2
        factors[dropped] = 0

        return factors


def compute_shrinkage_weight(moments: Moments, target: NDArray[np.float64] | None = None) -> float:
    """Return the weight in [0, 1] with which a covariance is best shrunk towards a target `(d, d)`, 0 if equal.

    The weight follows Ledoit and Wolf (2004, Lemma 3.3), and is 0 if the covariance equals the target. The target is
    tr(C)/d · I by default.
    """
    # With S the covariance and T the target, the weight is b²/δ²: δ² = ‖S − T‖², and b² the smaller of δ² and
    # Σ ‖yyᵀ − S‖²/n² = (Σ‖y‖⁴/n − ‖S‖²)/n. The paper's norms have a factor 1/d, which cancels.
    n, covariance = moments.count, moments.covariance(ddof=0)
    if target is None:
        target = covariance.trace() / moments.dimensions * np.eye(moments.dimensions)
    spread = float(np.square(covariance - target).sum())
    noise = min((moments.fourth / n - float(np.square(covariance).sum())) / n, spread)
    return noise / spread if spread > 0 else 0.0
