"""The angular loss of GeoPres."""

from collections.abc import Sequence

from torch import Tensor

from transforms.learned.losses.loss import LossAndGradient


def angular(x: Tensor, outputs: Sequence[Tensor]) -> list[LossAndGradient]:
    """Compute the angular loss, GeoPres Eq. 3: the mean squared error of the cosines of all pairs.

    With unit rows X and Z, L = ‖ZZᵀ − XXᵀ‖²_F/(m(m−1)) = (‖ZᵀZ‖² − 2‖XᵀZ‖² + ‖XᵀX‖²)/(m(m−1)) and
    ∂L/∂Z = 4/(m(m−1)) (Z ZᵀZ − X XᵀZ): no matrix of pairs is needed, the cost is that of a few
    d × p products. Rows must have unit length.
    """
    pairs = x.shape[0] * (x.shape[0] - 1)
    among_x = (x.T @ x).double().square().sum()
    found = []
    for z in outputs:
        among_z, across = z.T @ z, x.T @ z
        loss = among_x - 2 * across.double().square().sum() + among_z.double().square().sum()
        found.append((max(0.0, float(loss)) / pairs, (4 / pairs) * (z @ among_z - x @ across)))
    return found
