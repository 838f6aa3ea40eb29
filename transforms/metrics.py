"""How well a reduced space keeps the geometry of the original one; all in blocks of rows.

Arguments named `before` and `after` are the same n rows in both spaces, `(n, d)` and `(n, k)`.
Similarities are cosines; distances are Euclidean, of the vectors as they are.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transforms.arrays import FloatArray, as_numpy
from transforms.errors import InputError
from transforms.moments import Moments
from transforms.normalize import unit_rows
from transforms.positional import distances

BLOCK_ROWS = 512
"""Anchors compared with all rows at once: 40 MB a matrix at n=20,000."""


def local_spearman(before: FloatArray, after: FloatArray) -> float:
    """Mean over anchors of the rank correlation between their similarities before and after.

    True Spearman: ties get their average rank, the anchor itself is left out. The GeoPres paper
    finds this to go with downstream quality (its Table 1, ρ=0.94).

    Raises:
        InputError: with fewer than 3 rows, or rows that do not correspond.
    """
    return float(local_spearman_of_anchors(before, after).mean())


def local_spearman_of_anchors(before: FloatArray, after: FloatArray) -> NDArray[np.float64]:
    """`local_spearman` of each row `(n,)`, for intervals."""
    require_pairs(before, after, at_least=3)
    correlations = [
        correlation(average_ranks(original), average_ranks(reduced))
        for original, reduced in similarity_blocks(before, after, own=None)
    ]
    return torch.cat(correlations).double().numpy()


def recall_at_k(before: FloatArray, after: FloatArray, k: int = 10, oversampling: int = 1) -> float:
    """Share of each anchor's k nearest neighbours that the reduced space finds again.

    Strict set overlap, the anchor left out. With `oversampling` the reduced space only nominates
    k·oversampling candidates, which the original similarities then rank: what a search with
    rescoring returns.

    Raises:
        InputError: if there are not more than k·oversampling rows.
    """
    return float(recall_of_anchors(before, after, k, oversampling).mean())


def recall_of_anchors(before: FloatArray, after: FloatArray, k: int = 10, oversampling: int = 1) -> NDArray[np.float64]:
    """`recall_at_k` of each row `(n,)`, for intervals."""
    if k < 1 or oversampling < 1:
        raise InputError(f"k and the oversampling must be at least 1, got {k} and {oversampling}")
    require_pairs(before, after, at_least=k * oversampling + 1)
    found = []
    for original, reduced in similarity_blocks(before, after, own=-torch.inf):
        wanted = original.topk(k, dim=1).indices
        candidates = reduced.topk(k * oversampling, dim=1).indices
        found.append((wanted.unsqueeze(2) == candidates.unsqueeze(1)).any(2).double().mean(1))
    return torch.cat(found).numpy()


def positional_stress(before: FloatArray, after: FloatArray) -> float:
    """Mean over pairs of (δ_ij − d_ij)², the loss of GeoPres (Eq. 1), in squared units of distance.

    Raises:
        InputError: with fewer than 2 rows, or rows that do not correspond.
    """
    require_pairs(before, after, at_least=2)
    x, y = (torch.from_numpy(as_numpy(a).astype(np.float64)) for a in (before, after))
    x, y = x - x.mean(0), y - y.mean(0)
    total = 0.0
    for start in range(0, len(x), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        total += float((distances(x[rows], x) - distances(y[rows], y)).square().sum())
    pairs = len(x) * (len(x) - 1)
    return total / pairs


def isoscore(moments: Moments) -> float:
    """Isotropy of the centred space, 0 (one direction) to 1 (all alike).

    IsoScore equals (PR − 1)/(d − 1) with the participation ratio PR = tr(C)²/‖C‖²_F, so that no
    eigenvalues are needed.
    """
    c = moments.covariance(ddof=0)
    squares = float((c * c).sum())
    if squares == 0 or moments.dimensions < 2:
        return 0.0
    participation = float(c.trace()) ** 2 / squares
    return (participation - 1) / (moments.dimensions - 1)


def similarity_blocks(before: FloatArray, after: FloatArray, own: float | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Cosines of some anchors to all rows, in both spaces, a block of anchors at a time.

    Args:
        before: `(n, d)`.
        after: `(n, k)`.
        own: what stands for an anchor's similarity to itself; None leaves the column out.
    """
    spaces = [unit_rows(torch.from_numpy(as_numpy(a).astype(np.float32))) for a in (before, after)]
    n = before.shape[0]
    for start in range(0, n, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, n)
        itself = torch.zeros(stop - start, n, dtype=torch.bool)
        itself[torch.arange(stop - start), torch.arange(start, stop)] = True
        blocks = [space[start:stop] @ space.T for space in spaces]
        if own is None:
            first, second = (block[~itself].view(stop - start, n - 1) for block in blocks)
        else:
            first, second = (block.masked_fill_(itself, own) for block in blocks)
        yield first, second


def average_ranks(values: Tensor) -> Tensor:
    """Rank of each entry within its row `(b, n)`, ties sharing their average rank."""
    ordered, order = values.sort(dim=1)
    groups = torch.zeros_like(order)
    groups[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
    positions = torch.arange(values.shape[1], dtype=torch.float64).expand(values.shape)
    zeros = torch.zeros_like(positions, memory_format=torch.contiguous_format)
    sums = zeros.scatter_add(1, groups, positions)
    counts = zeros.scatter_add(1, groups, torch.ones_like(zeros))
    averages = (sums / counts.clamp(min=1)).gather(1, groups)
    return zeros.scatter(1, order, averages)


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson correlation of corresponding rows `(b, n)`; 0 where a row is constant."""
    a = a - a.mean(1, keepdim=True)
    b = b - b.mean(1, keepdim=True)
    scale = a.norm(dim=1) * b.norm(dim=1)
    return (a * b).sum(1) / torch.where(scale == 0, 1, scale)


def require_pairs(before: FloatArray, after: FloatArray, at_least: int) -> None:
    """Raise `InputError` unless both hold the same number of rows, at least so many."""
    if before.shape[0] != after.shape[0]:
        raise InputError(f"{before.shape[0]} rows before and {after.shape[0]} after do not correspond")
    if before.shape[0] < at_least:
        raise InputError(f"this needs at least {at_least} rows, got {before.shape[0]}")
