"""The positional loss of GeoPres and its gradient, in closed form and in tiles of pairs."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from transforms.learned.losses.loss import LossAndGradient

TILE = {"cpu": 512, "cuda": 4096}
"""Rows and columns of a matrix of pairs in memory at a time, by default: on a CPU what its caches
hold, on a GPU enough to keep it busy."""

MIN_DISTANCE = 3.0
"""Times √eps times the root mean square distance to the centre: closer rows count as this far
apart, because their distance is rounding error."""

TINY = 1e-30
"""Minimum squared distance, so that nothing is divided by zero where all outputs are the same."""


def positional(
    x: Tensor, outputs: Sequence[Tensor], scaled: bool = False, tile: int | None = None
) -> list[LossAndGradient]:
    """Compute the positional loss of outputs Z, and ∂L/∂Z, for several Z of the same rows.

    With δ the distances between the rows of `x` and d those within Z:

        L     = 2/(m(m−1)) Σ_{i<j} (δ_ij − c d_ij)²          (GeoPres, Eq. 1, with c = 1)
        ∂L/∂Z = 4c/(m(m−1)) · Λ Z,   Λ = diag(S·1) − S,   S_ij = c − δ_ij/d_ij (i≠j)

    Every pair is visited once: a tile of pairs contributes to its rows and, transposed, to its columns. The
    original distances are computed once for all Z. Memory is O(m (d + p)) and a tile. Float32 at least:
    distances of near-duplicates cancel.

    Args:
        x: a batch of rows `(m, d)`.
        outputs: each `(m, p)`.
        scaled: whether c is the best scale, Σδd / Σd², instead of 1; being optimal, it needs no gradient.
        tile: rows and columns of a matrix of pairs in memory at a time; None for the default of the device.
    """
    m = x.shape[0]
    pairs = m * (m - 1)  # ordered, both i, j and j, i
    original = _AugmentedRows(x)
    sides = [_AugmentedRows(z) for z in outputs]
    floors = [MIN_DISTANCE**2 * torch.finfo(x.dtype).eps * side.mean_square + TINY for side in sides]
    ones = [torch.cat([side.rows, side.rows.new_ones(m, 1)], 1) for side in sides]
    pulls = [torch.zeros_like(one) for one in ones]  # R Z and R·1 for R_ij = δ_ij/d_ij
    products = [x.new_zeros((), dtype=torch.float64) for _ in sides]  # Σ δ d
    for rows, columns in _upper_tiles(m, tile or TILE.get(x.device.type, TILE["cuda"])):
        wanted = original.squared_distances(rows, columns).clamp_(min=0).sqrt_()
        for index, side in enumerate(sides):
            reduced = side.squared_distances(rows, columns).clamp_(min=floors[index]).sqrt_()
            product = torch.dot(wanted.view(-1), reduced.view(-1))
            products[index] += product if rows == columns else 2 * product
            ratio = torch.div(wanted, reduced, out=reduced)
            if rows == columns:
                ratio.fill_diagonal_(0)
            else:
                pulls[index][columns].addmm_(ratio.T, ones[index][rows])
            pulls[index][rows].addmm_(ratio, ones[index][columns])

    found = []
    of_x = 2 * m * m * original.mean_square  # Σ δ² over all ordered pairs
    for side, pull, product in zip(sides, pulls, products, strict=True):
        of_z, both = 2 * m * m * side.mean_square, float(product)
        scale = both / of_z if scaled and of_z > 0 else 1.0
        loss = max(0.0, of_x - 2 * scale * both + scale**2 * of_z) / pairs
        towards = pull[:, -1:] * side.rows - pull[:, :-1]
        found.append((loss, (4 * scale / pairs) * (scale * m * side.rows - towards)))
    return found


class _AugmentedRows:
    """Centred rows `(m, p)` with two more columns, so that one product gives squared distances.

    (−2a, ‖a‖², 1) · (b, 1, ‖b‖²) = ‖a − b‖²: no further pass over a matrix of pairs.

    Attributes:
        rows: centred, `(m, p)`.
        mean_square: the mean squared distance to the centre.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows - rows.mean(0)
        squares = self.rows.square().sum(1, keepdim=True)
        ones = torch.ones_like(squares)
        self.left = torch.cat([-2 * self.rows, squares, ones], 1)
        self.right = torch.cat([self.rows, ones, squares], 1)
        self.mean_square = float(squares.mean(dtype=torch.float64))

    def squared_distances(self, rows: slice, columns: slice) -> Tensor:
        """Return the squared distances of some rows to some others; rounding can make them negative."""
        return self.left[rows] @ self.right[columns].T


def _upper_tiles(m: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Yield the upper triangle of an m × m matrix in squares, those on the diagonal included."""
    parts = [slice(start, min(start + size, m)) for start in range(0, m, size)]
    for index, rows in enumerate(parts):
        for columns in parts[index:]:
            yield rows, columns
