"""The positional loss of GeoPres, Eq. 1, and its gradient in closed form, computed in tiles of pairs."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lathe.transforms.learned.losses.loss import LossAndGradient
from lathe.transforms.products import multiply_rows

TILE = {"cpu": 512, "cuda": 4096}
"""Default rows and columns of a tile of the distance matrix, by device: small enough for a CPU's caches, large enough
to use a GPU fully."""

MIN_DISTANCE = 3.0
"""Minimum distance of two outputs, in units of √eps times the root mean square distance to the centre; smaller
distances are rounding error and are raised to it."""

TINY = 1e-30
"""Absolute minimum squared distance, which prevents division by zero where all outputs are equal."""


def positional_loss(
    x: Tensor, outputs: Sequence[Tensor], scaled: bool = False, tile: int | None = None
) -> list[LossAndGradient]:
    """Compute, for each output, the mean squared difference between distances of two rows in the output and in `x`.

    With δ the distances between the rows of `x` and d the distances between the rows of an output Z:

            L     = 2/(m(m−1)) Σ_{i<j} (δ_ij − c d_ij)²          (GeoPres, Eq. 1, with c = 1)
            ∂L/∂Z = 4c/(m(m−1)) · Λ Z,   Λ = diag(S·1) − S,   S_ij = c − δ_ij/d_ij (i≠j)

    Every pair is visited once: a tile of pairs contributes to its rows and, transposed, to its columns. The original
    distances are computed once for all Z. Memory is O(m (d + p)) and a tile. Tensors need float32 or float64: distances
    of near-duplicates cancel.

    Args:
        x: batch of rows, `(m, d)`.
        outputs: outputs of the batch, `(m, p)` each.
        scaled: whether c is the best scale, Σδd / Σd², instead of 1; the best c needs no gradient of its own.
        tile: rows and columns of a tile of the distance matrix; None for the device's entry in `TILE`.

    Returns:
        One pair (loss, gradient with respect to the output `(m, p)`) for each output.

    Example:
        >>> import torch
        >>> from lathe.transforms.learned.losses import positional_loss
        >>> x, z = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[0.0], [3.0]])
        >>> [(loss, gradient)] = positional_loss(x, [z])
        >>> round(loss, 3), gradient.shape  # the distance shrinks from 5 to 3
        (4.0, torch.Size([2, 1]))
    """
    m = x.shape[0]
    pairs = m * (m - 1)  # ordered, both i, j and j, i
    original = _AugmentedRows(x)
    augmented_outputs = [_AugmentedRows(z) for z in outputs]
    floors = [MIN_DISTANCE**2 * torch.finfo(x.dtype).eps * output.mean_square + TINY for output in augmented_outputs]
    # (p+1, m) each: this way round, both products with a tile are xWᵀ, which oneDNN multiplies fastest.
    ones = [torch.cat([output.rows.T, output.rows.new_ones(1, m)]) for output in augmented_outputs]
    pulls = [torch.zeros_like(augmented) for augmented in ones]  # (R Z)ᵀ and (R·1)ᵀ for R_ij = δ_ij/d_ij
    products = [x.new_zeros((), dtype=torch.float64) for _ in augmented_outputs]  # Σ δ d

    for rows, columns in _upper_tiles(m, tile or TILE.get(x.device.type, TILE["cuda"])):
        original_distances = original.squared_distances(rows, columns).clamp_(min=0).sqrt_()
        for index, output in enumerate(augmented_outputs):
            output_distances = output.squared_distances(rows, columns).clamp_(min=floors[index]).sqrt_()
            # A tile off the diagonal stands for two: (i, j) and (j, i).
            product = torch.dot(original_distances.view(-1), output_distances.view(-1))
            products[index] += product if rows == columns else 2 * product
            ratio = torch.div(original_distances, output_distances, out=output_distances)

            if rows == columns:
                ratio.fill_diagonal_(0)
            else:
                pulls[index][:, columns].add_(multiply_rows(ones[index][:, rows].contiguous(), ratio.T))

            pulls[index][:, rows].add_(multiply_rows(ones[index][:, columns].contiguous(), ratio))

    results = []
    # Over all ordered pairs, Σ‖a_i − a_j‖² = 2m Σ‖a_i‖² for centred rows, so no tile is needed.
    sum_x = 2 * m * m * original.mean_square  # Σ δ² over all ordered pairs
    for output, pull, product in zip(augmented_outputs, pulls, products, strict=True):
        sum_z, cross_sum = 2 * m * m * output.mean_square, float(product)
        scale = cross_sum / sum_z if scaled and sum_z > 0 else 1.0
        # Σ(δ − cd)² expanded: the parts nearly cancel for a good map, and rounding may leave less than 0.
        loss = max(0.0, sum_x - 2 * scale * cross_sum + scale**2 * sum_z) / pairs
        # ΛZ = c m Z − (diag(R·1) − R) Z, because the centred rows sum to 0.
        towards = pull[-1:].T * output.rows - pull[:-1].T
        results.append((loss, (4 * scale / pairs) * (scale * m * output.rows - towards)))

    return results


class _AugmentedRows:
    """Centred rows `(m, p)` with two extra columns, so that one matrix product gives squared distances.

    (−2a, ‖a‖², 1) · (b, 1, ‖b‖²) = ‖a − b‖²: no second pass over the matrix of pairs.

    Attributes:
        rows: rows minus their mean, `(m, p)`.
        mean_square: mean squared distance of the rows to their mean.
    """

    def __init__(self, rows: Tensor) -> None:
        # ‖a‖² + ‖b‖² − 2a·b loses its digits for rows in a narrow cone; centring moves the cone to the origin.
        self.rows = rows - rows.mean(0)
        squares = self.rows.square().sum(1, keepdim=True)
        ones = torch.ones_like(squares)
        self.left = torch.cat([-2 * self.rows, squares, ones], 1)
        self.right = torch.cat([self.rows, ones, squares], 1)
        self.mean_square = float(squares.mean(dtype=torch.float64))

    def squared_distances(self, rows: slice, columns: slice) -> Tensor:
        """Return the squared distances `(a, b)` between two slices of the rows.

        Rounding can make entries negative.
        """
        return multiply_rows(self.left[rows], self.right[columns])


def _upper_tiles(m: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Divide an m × m matrix into square tiles of `size` rows, and yield the tiles on and above the diagonal.

    A tile is a pair of slices `(rows, columns)`; the order is row by row.
    """
    parts = [slice(start, min(start + size, m)) for start in range(0, m, size)]
    for index, rows in enumerate(parts):
        for columns in parts[index:]:
            yield rows, columns
