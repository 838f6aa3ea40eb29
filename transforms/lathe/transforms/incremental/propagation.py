"""Moments of the outputs of a map, computed from the moments of its inputs without any row."""

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.errors import InputError
from lathe.transforms.linear import Affine
from lathe.transforms.statistics import Moments, Spectrum
from lathe.transforms.vectors import as_float64

MAX_NEGATIVE_SHARE = 0.05
"""Maximum sum of the negative eigenvalues of an estimated covariance, as a share of its trace."""


def propagate_moments(moments: Moments, affine: Affine) -> Moments:
    """Return the moments of the outputs Wx + b of an affine map, given the moments of its inputs x. Count, mean and
    scatter are exact, and the third and fourth moments are NaN.

    The mean is Wμ + b and the scatter WSWᵀ. `third` and `fourth` are NaN so that nothing is fitted on them: they do not
    follow from moments, because ‖Wx‖² is not a function of ‖x‖². Rows of zeros, which a step maps to zero, are counted
    as b.
    """
    weight = as_float64(affine.weight)
    propagated = Moments()
    propagated.count = moments.count
    propagated.mean = weight @ moments.mean

    if affine.bias is not None:
        propagated.mean = propagated.mean + as_float64(affine.bias)

    propagated.scatter = weight @ moments.scatter @ weight.T
    propagated.third, propagated.fourth = np.full(len(propagated.mean), np.nan), np.nan
    return propagated


def approximate_normalized_moments(unit_before: Moments, raw_before: Moments, raw_after: Moments) -> Moments:
    """Approximate the moments of a map's normalized outputs after a refit of the map. They are those before the refit
    (`unit_before`), plus the change of the moments of the outputs before normalization, scaled to unit norm.

    A map's outputs are y before its refit and y′ after it, z = y/‖y‖ and z′ = y′/‖y′‖; the result is for z′. Moments do
    not determine it exactly. The change of the moments from y to y′ is known exactly and is added to the measured
    moments of z, as if all rows had the same norm (their root mean square ρ): E[z′] = E[z] + E[y′]/ρ′ − E[y]/ρ, and
    E[z′z′ᵀ] likewise. The error is of the order of the change times the spread of the norms; without a change it is
    zero. z′ lies in the subspace of y′, so the estimate is projected on that subspace. `third` stays that of z, and
    `fourth` is such that all rows have one norm, as normalized rows do.

    Args:
        unit_before: moments of z.
        raw_before: moments of y.
        raw_after: moments of y′, of the same rows.

    Raises:
        InputError: if the map changed so much that no rows could have such moments.
    """
    was, now = raw_before.second_moment(), raw_after.second_moment()
    # ρ² and ρ′²: the trace of E[yyᵀ] is the mean squared norm.
    was_square, now_square = float(np.trace(was)), float(np.trace(now))
    # Of the second moment, not of the covariance: z′ has a component along the mean of y′ too.
    spectrum = Spectrum.of(now, raw_after.rounding_variance())
    spanned = spectrum.directions[: spectrum.rank]
    project = spanned.T @ spanned
    approximate = Moments()
    approximate.count, approximate.third = unit_before.count, unit_before.third.copy()
    approximate.mean = project @ (
        unit_before.mean + raw_after.mean / np.sqrt(now_square) - raw_before.mean / np.sqrt(was_square)
    )
    second = project @ (unit_before.second_moment() + now / now_square - was / was_square) @ project
    approximate.scatter = unit_before.count * _nearest_covariance(second - np.outer(approximate.mean, approximate.mean))
    approximate.fourth -= approximate.squared_norm_variance() * approximate.count

    return approximate


def _nearest_covariance(estimate: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the positive semidefinite matrix that is nearest to a symmetric estimate of a covariance.

    Raises:
        InputError: if the negative eigenvalues are too large for rounding and a small change of the map
            (`MAX_NEGATIVE_SHARE`).
    """
    # `eigh` reads one triangle only; the average with the transpose uses both, which rounding made differ.
    variances, directions = np.linalg.eigh((estimate + estimate.T) / 2)
    excess = -variances[variances < 0].sum()
    if excess > MAX_NEGATIVE_SHARE * variances.sum():
        raise InputError(
            "the added rows change the steps too much for the moments of the old rows to be updated: "
            "fit again on all rows"
        )

    # Without its negative eigenvalues the matrix is the nearest semidefinite one in the Frobenius norm.
    nearest: NDArray[np.float64] = (directions * np.maximum(variances, 0)) @ directions.T
    return nearest
