"""Metrics of how well a reduced space keeps the geometry of the original one, computed in blocks of rows.

Arguments named `before` and `after` are the same n rows in both spaces, `(n, d)` and `(n, k)`.
Similarities are cosines; distances are Euclidean, of the vectors as they are.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transforms.errors import InputError
from transforms.statistics import Moments, distances, participation_ratio, unit_rows
from transforms.vectors import FloatArray, as_numpy

MAX_BLOCK_ENTRIES = 2**20
"""Similarities in memory at a time: 52 anchors with n=20,000 rows, 8 MB a matrix in float64."""

COMPAT_TOLERANCE = 1e-3
"""What ann-benchmarks adds to the distance of the k-th neighbour."""


def local_spearman(before: FloatArray, after: FloatArray) -> float:
    """Return the mean over anchors of the rank correlation between their similarities before and after.

    True Spearman: ties get their average rank, the anchor itself is left out. In the GeoPres paper
    it correlates with downstream quality (its Table 1, ρ=0.94).

    Raises:
        InputError: with fewer than 3 rows, or rows that do not correspond.
    """
    return float(local_spearman_of_anchors(before, after).mean())


def local_spearman_of_anchors(before: FloatArray, after: FloatArray) -> NDArray[np.float64]:
    """Return the `local_spearman` of each row `(n,)`, for confidence intervals."""
    _require_same_rows(before, after, at_least=3)

    def rank_correlation(original: Tensor, reduced: Tensor) -> Tensor:
        return correlation(average_ranks(original), average_ranks(reduced))

    return _measure_anchors(before, after, None, rank_correlation)


def pearson_compat(before: FloatArray, after: FloatArray) -> float:
    """Return the mean over anchors of the Pearson correlation between their similarities before and after.

    This is what the published GeoPres code reports as Spearman: its soft ranks, at strength 1, are an
    affine function of the similarities. For comparison with its numbers only.

    Raises:
        InputError: with fewer than 3 rows, or rows that do not correspond.
    """
    _require_same_rows(before, after, at_least=3)
    return float(_measure_anchors(before, after, None, lambda x, y: correlation(x.double(), y.double())).mean())


def recall_at_k(
    before: FloatArray, after: FloatArray, k: int = 10, oversampling: int = 1, compat: bool = False
) -> float:
    """Return the mean share of an anchor's k nearest neighbours that are also nearest in the reduced space.

    Strict set overlap, the anchor left out. With `oversampling` the reduced space selects
    k·oversampling candidates, which the original similarities then rank: what a search with
    rescoring returns. With `compat`, as ann-benchmarks counts: a result within 1e-3 of
    the k-th neighbour's cosine distance is right, so that ties and near-ties do not count as errors.

    Raises:
        InputError: if there are not more than k·oversampling rows.
    """
    return float(recall_of_anchors(before, after, k, oversampling, compat).mean())


def recall_of_anchors(
    before: FloatArray, after: FloatArray, k: int = 10, oversampling: int = 1, compat: bool = False
) -> NDArray[np.float64]:
    """Return the `recall_at_k` of each row `(n,)`, for confidence intervals."""
    if k < 1 or oversampling < 1:
        raise InputError(f"k and the oversampling must be at least 1, got {k} and {oversampling}")
    _require_same_rows(before, after, at_least=k * oversampling + 1)

    def shares(original: Tensor, reduced: Tensor) -> Tensor:
        nearest = original.topk(k, dim=1)
        candidates = reduced.topk(k * oversampling, dim=1).indices
        if compat:
            returned = original.gather(1, candidates).topk(k, dim=1).values
            right = returned >= nearest.values[:, -1:] - COMPAT_TOLERANCE
        else:
            right = (nearest.indices.unsqueeze(2) == candidates.unsqueeze(1)).any(2)
        return right.double().mean(1)

    return _measure_anchors(before, after, -torch.inf, shares)


def cross_recall_at_k(outputs: FloatArray, targets: FloatArray, k: int = 10) -> float:
    """Return the mean share of a target's k nearest other targets that its output finds among the targets.

    This is the recall of a search whose queries are aligned to the space of an index.

    Args:
        outputs: `(n, d)`, aligned vectors.
        targets: `(n, d)`, what they should be.
        k: number of neighbours.

    Raises:
        InputError: if there are not more than k rows, or the two do not correspond.
    """
    _require_same_rows(outputs, targets, at_least=k + 1)
    x, y = (unit_rows(torch.from_numpy(as_numpy(a).astype(np.float32))) for a in (outputs, targets))
    found = np.empty(len(x))
    for rows in anchor_blocks(len(x)):
        itself = torch.arange(rows.start, rows.stop).unsqueeze(1)
        wanted, returned = (
            (queries[rows] @ y.T).scatter(1, itself, -torch.inf).topk(k, dim=1).indices for queries in (y, x)
        )
        found[rows] = (wanted.unsqueeze(2) == returned.unsqueeze(1)).any(2).double().mean(1).numpy()
    return float(found.mean())


def positional_stress(before: FloatArray, after: FloatArray) -> float:
    """Return the mean over pairs of (δ_ij − d_ij)², the loss of GeoPres (Eq. 1), in squared units of distance.

    Raises:
        InputError: with fewer than 2 rows, or rows that do not correspond.
    """
    _require_same_rows(before, after, at_least=2)
    x, y = (torch.from_numpy(as_numpy(a).astype(np.float64)) for a in (before, after))
    x, y = x - x.mean(0), y - y.mean(0)
    return _mean_square_over_pairs(len(x), lambda rows: distances(x[rows], x) - distances(y[rows], y))


def angular_stress(before: FloatArray, after: FloatArray) -> float:
    """Return the mean over pairs of (s_ij − s_ij')² with cosines s: the angular loss of GeoPres (Eq. 3).

    Raises:
        InputError: with fewer than 2 rows, or rows that do not correspond.
    """
    _require_same_rows(before, after, at_least=2)
    x, y = (unit_rows(torch.from_numpy(as_numpy(a).astype(np.float64))) for a in (before, after))
    return _mean_square_over_pairs(len(x), lambda rows: x[rows] @ x.T - y[rows] @ y.T)


def _mean_square_over_pairs(n: int, errors: Callable[[slice], Tensor]) -> float:
    """Return the mean square over pairs of rows of the errors that `errors` returns for a block of anchors."""
    total = 0.0
    for rows in anchor_blocks(n):
        block = errors(rows)
        block[torch.arange(len(block)), torch.arange(rows.start, rows.stop)] = 0
        total += float(block.square().sum())
    return total / (n * (n - 1))


def isoscore(moments: Moments) -> float:
    """Return the isotropy of the centred space, 0 (one direction) to 1 (equal variance in all).

    IsoScore equals (PR − 1)/(d − 1) with the participation ratio PR = tr(C)²/‖C‖²_F, so that no
    eigenvalues are needed.
    """
    if moments.dimensions < 2:
        return 0.0
    ratio = participation_ratio(moments.covariance(ddof=0))
    return (ratio - 1) / (moments.dimensions - 1) if ratio > 0 else 0.0


def anchor_blocks(n: int) -> Iterator[slice]:
    """Yield the anchors 0…n in blocks whose similarities to all rows fit `MAX_BLOCK_ENTRIES`."""
    step = max(1, MAX_BLOCK_ENTRIES // n)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def _measure_anchors(
    before: FloatArray, after: FloatArray, own: float | None, measure: Callable[[Tensor, Tensor], Tensor]
) -> NDArray[np.float64]:
    """Return a measure of each anchor `(n,)`, computed from its similarities in both spaces; see `_similarity_blocks`.

    The result is allocated first: small results between large blocks would fragment the heap, and
    20,000 rows would take gigabytes.
    """
    found = np.empty(before.shape[0])
    blocks = _similarity_blocks(before, after, own)
    for rows, (original, reduced) in zip(anchor_blocks(len(found)), blocks, strict=True):
        found[rows] = measure(original, reduced).numpy()
    return found


def _similarity_blocks(before: FloatArray, after: FloatArray, own: float | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the cosines of a block of anchors to all rows, in both spaces.

    Args:
        before: `(n, d)`.
        after: `(n, k)`.
        own: value in place of an anchor's similarity to itself; None leaves the column out.
    """
    spaces = [unit_rows(torch.from_numpy(as_numpy(a).astype(np.float32))) for a in (before, after)]
    n = before.shape[0]
    for rows in anchor_blocks(n):
        count = rows.stop - rows.start
        itself = torch.zeros(count, n, dtype=torch.bool)
        itself[torch.arange(count), torch.arange(rows.start, rows.stop)] = True
        blocks = [space[rows] @ space.T for space in spaces]
        if own is None:
            first, second = (block[~itself].view(count, n - 1) for block in blocks)
        else:
            first, second = (block.masked_fill_(itself, own) for block in blocks)
        yield first, second


def average_ranks(values: Tensor) -> Tensor:
    """Return the rank of each entry within its row `(b, n)`, tied entries having their average rank."""
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
    """Return the Pearson correlation of corresponding rows `(b, n)`; 0 where a row is constant."""
    a = a - a.mean(1, keepdim=True)
    b = b - b.mean(1, keepdim=True)
    scale = a.norm(dim=1) * b.norm(dim=1)
    return (a * b).sum(1) / torch.where(scale == 0, 1, scale)


def _require_same_rows(before: FloatArray, after: FloatArray, at_least: int) -> None:
    """Raise `InputError` unless both have the same number of rows, at least `at_least`."""
    if before.shape[0] != after.shape[0]:
        raise InputError(f"{before.shape[0]} rows before and {after.shape[0]} after do not correspond")
    if before.shape[0] < at_least:
        raise InputError(f"this needs at least {at_least} rows, got {before.shape[0]}")
