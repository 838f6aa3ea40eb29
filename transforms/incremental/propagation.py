"""Moments of rows after a map, computed from the moments before it without any row."""

import numpy as np
from numpy.typing import NDArray

from transforms.errors import InputError
from transforms.linear import Affine
from transforms.statistics import Moments, Spectrum
from transforms.vectors import as_float64

MAX_NEGATIVE_SHARE = 0.05
"""Maximum share of the total variance that the negative eigenvalues of an estimated covariance may have."""


def propagate_moments(moments: Moments, affine: Affine) -> Moments:
    """Return the moments of Wx + b, Wμ + b and WSWᵀ, exactly.

    `third` and `fourth` do not follow from moments (‖Wy‖² is not a function of ‖y‖²) and are NaN, so
    that nothing is fitted on them. A row of zeros, which steps leave zero, counts as b.
    """
    weight = as_float64(affine.weight)
    found = Moments()
    found.count = moments.count
    found.mean = weight @ moments.mean
    if affine.bias is not None:
        found.mean = found.mean + as_float64(affine.bias)
    found.scatter = weight @ moments.scatter @ weight.T
    found.third, found.fourth = np.full(len(found.mean), np.nan), np.nan
    return found


def approximate_normalized_moments(unit: Moments, before: Moments, after: Moments) -> Moments:
    """Approximate the moments of z′ = y′/‖y′‖ from those of z = y/‖y‖, after a map that output y changed to output y′.

    Moments do not determine these exactly. The effect of the changed map on y is known exactly, so it is
    added to the measured moments of z, as if all lengths were equal (their root mean square ρ):
    E[z′] = E[z] + E[y′]/ρ′ − E[y]/ρ, and E[z′z′ᵀ] likewise. The error is of the order of the change
    times the spread of the lengths; without a change there is none. z′ lies in the subspace of y′, so the
    estimate is projected on it. `third` and `fourth` stay those of z.

    Args:
        unit: of z.
        before: of y.
        after: of y′, of the same rows.

    Raises:
        InputError: if the map changed so much that no rows could have such moments.
    """
    was, now = before.second_moment(), after.second_moment()
    was_square, now_square = float(np.trace(was)), float(np.trace(now))
    spectrum = Spectrum.of(now, after.rounding())
    spanned = spectrum.directions[: spectrum.rank]
    project = spanned.T @ spanned
    found = Moments()
    found.count, found.third, found.fourth = unit.count, unit.third.copy(), unit.fourth
    found.mean = project @ (unit.mean + after.mean / np.sqrt(now_square) - before.mean / np.sqrt(was_square))
    second = project @ (unit.second_moment() + now / now_square - was / was_square) @ project
    found.scatter = unit.count * _nearest_covariance(second - np.outer(found.mean, found.mean))
    return found


def _nearest_covariance(estimate: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the symmetric estimate without its negative eigenvalues, which are its error.

    Raises:
        InputError: if they are larger than rounding and a small change of the map explain.
    """
    variances, directions = np.linalg.eigh((estimate + estimate.T) / 2)
    excess = -variances[variances < 0].sum()
    if excess > MAX_NEGATIVE_SHARE * variances.sum():
        raise InputError(
            "the added rows change the steps too much for the moments of the old rows to be updated: "
            "fit again on all rows"
        )
    nearest: NDArray[np.float64] = (directions * np.maximum(variances, 0)) @ directions.T
    return nearest
