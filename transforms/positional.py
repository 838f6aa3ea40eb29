"""The positional loss of GeoPres and its gradient, in closed form and in blocks of rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK_ROWS = 512
"""Anchors whose distances to the whole batch are held at once."""

SMALLEST_DISTANCE = 1e-6
"""Closer rows than this pull on nothing: their direction is rounding error."""


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """Euclidean distances `(a, b)` between `rows` `(a, d)` and `others` `(b, d)`.

    Through the Gram matrix: both should be centred alike, so that little cancels, and what
    rounding makes negative is clamped.
    """
    squares = rows.square().sum(1, keepdim=True) + others.square().sum(1)
    return torch.addmm(squares, rows, others.T, alpha=-2).clamp_(min=0).sqrt_()


def positional_losses(
    x: Tensor, weight: Tensor, sizes: Sequence[int], importance: Sequence[float]
) -> tuple[list[float], Tensor]:
    """Positional loss of every size of a linear map's normalised output, and the gradient.

    For the size p, with δ the distances between the rows of `x`, Z the first p columns of x Wᵀ
    with rows normalised, and d the distances within Z:

        L_p = 2/(m(m−1)) Σ_{i<j} (δ_ij − c d_ij)²          (GeoPres, Eq. 1, with a scale c)
        ∂L_p/∂Z = 4c/(m(m−1)) · Λ Z,   Λ = diag(S·1) − S,   S_ij = c − δ_ij/d_ij (i≠j)

    c is the best scale, Σδd / Σd²; being the best it needs no gradient of its own. It spares a
    small size from paying for the length that normalising gives back anyway.

    Args:
        x: a batch of unit rows `(m, d)`.
        weight: W, `(k, d)`.
        sizes: the sizes p, each at most k.
        importance: what each loss counts for in the gradient.

    Returns:
        The loss of each size, and Σ importance_p · ∂L_p/∂W, `(k, d)`.
    """
    m = x.shape[0]
    pairs = m * (m - 1)  # ordered: the sums below meet i, j and j, i
    x_centred = x - x.mean(0)
    y = x @ weight.T
    lengths = [y[:, :p].norm(dim=1, keepdim=True).clamp_(min=SMALLEST_DISTANCE) for p in sizes]
    z = [y[:, :p] / length for p, length in zip(sizes, lengths, strict=True)]
    z_centred = [unit - unit.mean(0) for unit in z]
    pulls = [torch.zeros_like(unit) for unit in z]  # (diag(R·1) − R) Z for R_ij = δ_ij/d_ij
    sum_xx, sum_xz, sum_zz = 0.0, [0.0] * len(z), [0.0] * len(z)
    for start in range(0, m, BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        original = distances(x_centred[rows], x_centred)
        sum_xx += float(original.square().sum(dtype=torch.float64))
        for index, unit in enumerate(z_centred):
            reduced = distances(unit[rows], unit)
            sum_xz[index] += float((original * reduced).sum(dtype=torch.float64))
            sum_zz[index] += float(reduced.square().sum(dtype=torch.float64))
            ratio = (original / reduced).where(reduced > SMALLEST_DISTANCE, 0)
            pulls[index][rows] = ratio.sum(1, keepdim=True) * unit[rows] - ratio @ unit

    losses, gradient = [], torch.zeros_like(weight)
    for index, p in enumerate(sizes):
        scale = sum_xz[index] / sum_zz[index] if sum_zz[index] > 0 else 1.0
        losses.append((sum_xx - 2 * scale * sum_xz[index] + scale**2 * sum_zz[index]) / pairs)
        along = (4 * scale / pairs) * (scale * m * z_centred[index] - pulls[index])
        tangent = (along - (along * z[index]).sum(1, keepdim=True) * z[index]) / lengths[index]
        gradient[:p] += importance[index] * (tangent.T @ x)
    return losses, gradient
