"""The angular loss of GeoPres, Eq. 3."""

from collections.abc import Sequence

from torch import Tensor

from lathe.transforms.learned.losses.loss import LossAndGradient


def angular(x: Tensor, outputs: Sequence[Tensor]) -> list[LossAndGradient]:
    """Compute, for each output, the mean squared error of all pairs' cosines against those in x, and its gradient.

    GeoPres, Eq. 3. With unit rows X `(m, d)` and Z `(m, p)`,
    L = ‖ZZᵀ − XXᵀ‖²_F/(m(m−1)) = (‖ZᵀZ‖² − 2‖XᵀZ‖² + ‖XᵀX‖²)/(m(m−1)) and
    ∂L/∂Z = 4/(m(m−1)) (Z ZᵀZ − X XᵀZ): no m × m matrix is needed, only a few products of size
    d × p. Rows must have unit length.
    """
    pairs = x.shape[0] * (x.shape[0] - 1)
    among_x = (x.T @ x).double().square().sum()
    results = []
    for z in outputs:
        among_z, across = z.T @ z, x.T @ z
        # The three terms nearly cancel where cosines are kept, so they are summed in float64 and clamped at 0.
        loss = among_x - 2 * across.double().square().sum() + among_z.double().square().sum()
        results.append((max(0.0, float(loss)) / pairs, (4 / pairs) * (z @ among_z - x @ across)))
    return results
