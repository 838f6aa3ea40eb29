"""Spectral tempering: how strongly to whiten a reduction, from the eigenvalues of the covariance alone."""

import numpy as np
from numpy.typing import NDArray

NOISE_SHARE = 0.1
"""Share of the eigenvalues, the smallest, whose mean is taken for the variance of noise."""


def tempered_power(values: NDArray[np.float64], dimensions: int) -> float:
    """Return the power p, from 0 to 1, with which a reduction to `dimensions` principal directions should be whitened.
    A direction of variance λ is then scaled by λ^{−p/2}.

    SpecTemp (arXiv 2603.19339): with σ² the mean of the smallest tenth of the eigenvalues and SNR(k) = λ_k/σ² − 1,

        p(k) = min(1, SNR(k) / SNR(knee)),

    where the knee is the eigenvalue farthest below the straight line from the first to the last one before that tenth
    (Kneedle, Satopää et al., 2011). So a reduction up to the knee is whitened fully, and one that keeps directions of
    noise hardly at all. Kneedle's sensitivity is left out: the knee is the farthest point, and not the first one from
    which the distance falls.

    Args:
        values: eigenvalues `(d,)`, descending and nonnegative.
        dimensions: k, from 1 to d. If k is above nine tenths of d, p is that of k at nine tenths of d.
    """
    signals = max(1, int(len(values) * (1 - NOISE_SHARE)))
    # The division by σ² cancels, so that empty directions, whose σ² is 0, need no case of their own.
    excess = values[:signals] - values[signals:].mean() if signals < len(values) else values
    knee = _find_knee(excess)
    if excess[knee] <= 0:  # all variances are equal: every power gives the same map up to a factor
        return 1.0
    return float(min(1.0, max(0.0, excess[min(dimensions, signals) - 1]) / excess[knee]))


def _find_knee(curve: NDArray[np.float64]) -> int:
    """Return the position of the knee of a descending curve. It is the point farthest below the straight line between
    the ends.

    Both axes are scaled to [0, 1]; the position is 0 for a curve of fewer than three points, or one that is flat.
    """
    height = curve[0] - curve[-1]
    if len(curve) < 3 or height <= 0:
        return 0
    # Both axes on [0, 1], so that the distance does not depend on the scale of the eigenvalues.
    line = np.linspace(1, 0, len(curve))
    return int((line - (curve - curve[-1]) / height).argmax())
