"""Moments of rows after a map, from the moments before it: no row is needed."""

import numpy as np
import torch
from torch import Tensor

from transforms.base.transform import Transform
from transforms.errors import InputError
from transforms.linear.affine import Affine
from transforms.linear.normalize import Normalize
from transforms.linear.projection import Selection
from transforms.statistics.moments import Moments
from transforms.statistics.spectrum import Spectrum

FloatMatrix = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

EXCESS_MOST = 0.05
"""Of the variance in all, by which an estimate of a covariance may be no covariance."""


def affine_parts(step: Transform) -> list[Affine] | None:
    """The affine maps `(k, d)` of a fitted step, its normalisations left out; None if it is more than these."""
    parts = []
    for primitive in step.primitives():
        if isinstance(primitive, Selection):
            parts.append(primitive.affine())
        elif isinstance(primitive, Affine):
            parts.append(primitive)
        elif not isinstance(primitive, Normalize):
            return None
    return parts


def mapped(moments: Moments, affine: Affine) -> Moments:
    """The moments of Wx + b: Wμ + b and WSWᵀ, exactly.

    `third` and `fourth` cannot be had from moments (‖Wy‖² is no function of ‖y‖²) and are NaN, so
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


def as_float64(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """A tensor as an array."""
    array: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = tensor.to("cpu", torch.float64).numpy()
    return array


def carried_over(unit: Moments, before: Moments, after: Moments) -> Moments:
    """Moments of z′ = y′/‖y′‖ from those of z = y/‖y‖, where the map that gave y now gives y′.

    No moments give these exactly. What the change of map does to y is known exactly, so that much
    is added to what was measured of z, lengths taken for equal (their root mean square ρ):
    E[z′] = E[z] + E[y′]/ρ′ − E[y]/ρ, and E[z′z′ᵀ] likewise. The error is of the order of the change
    times the spread of the lengths; without a change there is none. z′ lies where y′ does, so what
    falls beside that is taken away. `third` and `fourth` stay those of z.

    Args:
        unit: of z.
        before: of y.
        after: of y′, of the same rows.

    Raises:
        InputError: if the map changed so much that the result would be no rows' moments.
    """
    was, now = before.second_moment(), after.second_moment()
    was_square, now_square = float(np.trace(was)), float(np.trace(now))
    spectrum = Spectrum.of(now, after.rounding())
    there = spectrum.directions[: spectrum.rank]
    project = there.T @ there
    found = Moments()
    found.count, found.third, found.fourth = unit.count, unit.third.copy(), unit.fourth
    found.mean = project @ (unit.mean + after.mean / np.sqrt(now_square) - before.mean / np.sqrt(was_square))
    second = project @ (unit.second_moment() + now / now_square - was / was_square) @ project
    found.scatter = unit.count * covariance_nearest(second - np.outer(found.mean, found.mean))
    return found


def covariance_nearest(found: FloatMatrix) -> FloatMatrix:
    """A symmetric matrix without its negative eigenvalues, which no rows have; they are the error of an estimate.

    Raises:
        InputError: if they are more than rounding and a small change leave.
    """
    variances, directions = np.linalg.eigh((found + found.T) / 2)
    excess = -variances[variances < 0].sum()
    if excess > EXCESS_MOST * variances.sum():
        raise InputError(
            "the added rows move the steps too far for what the old rows would be now to be told from moments: "
            "fit anew on all of them"
        )
    nearest: FloatMatrix = (directions * np.maximum(variances, 0)) @ directions.T
    return nearest
