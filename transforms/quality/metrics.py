"""How well a reduced space keeps the geometry of the original one; all in blocks of rows.

Arguments named `before` and `after` are the same n rows in both spaces, `(n, d)` and `(n, k)`.
Similarities are cosines; distances are Euclidean, of the vectors as they are.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transforms.errors import InputError
from transforms.learned.losses.positional import distances
from transforms.linear.normalize import unit_rows
from transforms.statistics.moments import Moments
from transforms.statistics.spectrum import participation_ratio
from transforms.vectors import FloatArray, as_numpy

BLOCK_ENTRIES = 2**20
"""Similarities held at once: 52 anchors with n=20,000 rows, 8 MB a matrix in float64."""

COMPAT_TOLERANCE = 1e-3
"""What ann-benchmarks adds to the distance of the k-th neighbour."""


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

    def rank_correlation(original: Tensor, reduced: Tensor) -> Tensor:
        return correlation(average_ranks(original), average_ranks(reduced))

    return of_anchors(before, after, None, rank_correlation)


def pearson_compat(before: FloatArray, after: FloatArray) -> float:
    """Mean over anchors of the Pearson correlation between their similarities before and after.

    What the published GeoPres code reports as Spearman: its soft ranks, at strength 1, are an
    affine function of the similarities. For comparison with its numbers only.

    Raises:
        InputError: with fewer than 3 rows, or rows that do not correspond.
    """
    require_pairs(before, after, at_least=3)
    return float(of_anchors(before, after, None, lambda x, y: correlation(x.double(), y.double())).mean())


def recall_at_k(
    before: FloatArray, after: FloatArray, k: int = 10, oversampling: int = 1, compat: bool = False
) -> float:
    """Share of each anchor's k nearest neighbours that the reduced space finds again.

    Strict set overlap, the anchor left out. With `oversampling` the reduced space only nominates
    k·oversampling candidates, which the original similarities then rank: what a search with
    rescoring returns. With `compat`, as ann-benchmarks counts: whatever is found within 1e-3 of
    the k-th neighbour's cosine distance is right, so that ties and near-ties do no harm.

    Raises:
        InputError: if there are not more than k·oversampling rows.
    """
    return float(recall_of_anchors(before, after, k, oversampling, compat).mean())


def recall_of_anchors(
    before: FloatArray, after: FloatArray, k: int = 10, oversampling: int = 1, compat: bool = False
) -> NDArray[np.float64]:
    """`recall_at_k` of each row `(n,)`, for intervals."""
    if k < 1 or oversampling < 1:
        raise InputError(f"k and the oversampling must be at least 1, got {k} and {oversampling}")
    require_pairs(before, after, at_least=k * oversampling + 1)

    def shares(original: Tensor, reduced: Tensor) -> Tensor:
        nearest = original.topk(k, dim=1)
        candidates = reduced.topk(k * oversampling, dim=1).indices
        if compat:
            returned = original.gather(1, candidates).topk(k, dim=1).values
            right = returned >= nearest.values[:, -1:] - COMPAT_TOLERANCE
        else:
            right = (nearest.indices.unsqueeze(2) == candidates.unsqueeze(1)).any(2)
        return right.double().mean(1)

    return of_anchors(before, after, -torch.inf, shares)


def cross_recall_at_k(outputs: FloatArray, targets: FloatArray, k: int = 10) -> float:
    """Share of each target's k nearest other targets that its output, searching the targets, finds.

    What is kept of a search when the queries come through an alignment and the index does not.

    Args:
        outputs: `(n, d)`, aligned vectors.
        targets: `(n, d)`, what they should be.
        k: neighbours.

    Raises:
        InputError: if there are not more than k rows, or the two do not correspond.
    """
    require_pairs(outputs, targets, at_least=k + 1)
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
    """Mean over pairs of (δ_ij − d_ij)², the loss of GeoPres (Eq. 1), in squared units of distance.

    Raises:
        InputError: with fewer than 2 rows, or rows that do not correspond.
    """
    require_pairs(before, after, at_least=2)
    x, y = (torch.from_numpy(as_numpy(a).astype(np.float64)) for a in (before, after))
    x, y = x - x.mean(0), y - y.mean(0)
    return mean_of_pairs(len(x), lambda rows: distances(x[rows], x) - distances(y[rows], y))


def angular_stress(before: FloatArray, after: FloatArray) -> float:
    """Mean over pairs of (s_ij − s_ij')² with cosines s: the angular loss of GeoPres (Eq. 3).

    Raises:
        InputError: with fewer than 2 rows, or rows that do not correspond.
    """
    require_pairs(before, after, at_least=2)
    x, y = (unit_rows(torch.from_numpy(as_numpy(a).astype(np.float64))) for a in (before, after))
    return mean_of_pairs(len(x), lambda rows: x[rows] @ x.T - y[rows] @ y.T)


def mean_of_pairs(n: int, errors: Callable[[slice], Tensor]) -> float:
    """The mean square of what `errors` gives for some anchors with all rows, a row with itself left out."""
    total = 0.0
    for rows in anchor_blocks(n):
        block = errors(rows)
        block[torch.arange(len(block)), torch.arange(rows.start, rows.stop)] = 0
        total += float(block.square().sum())
    return total / (n * (n - 1))


def isoscore(moments: Moments) -> float:
    """Isotropy of the centred space, 0 (one direction) to 1 (all alike).

    IsoScore equals (PR − 1)/(d − 1) with the participation ratio PR = tr(C)²/‖C‖²_F, so that no
    eigenvalues are needed.
    """
    if moments.dimensions < 2:
        return 0.0
    ratio = participation_ratio(moments.covariance(ddof=0))
    return (ratio - 1) / (moments.dimensions - 1) if ratio > 0 else 0.0


def anchor_blocks(n: int) -> Iterator[slice]:
    """The anchors 0…n in blocks that keep a matrix of them with all rows small."""
    step = max(1, BLOCK_ENTRIES // n)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def of_anchors(
    before: FloatArray, after: FloatArray, own: float | None, measure: Callable[[Tensor, Tensor], Tensor]
) -> NDArray[np.float64]:
    """A measure of each anchor `(n,)`, from its similarities in both spaces; see `similarity_blocks`.

    The answer is allocated first: small results kept between large blocks would pin the heap, and
    20,000 rows would take gigabytes.
    """
    found = np.empty(before.shape[0])
    blocks = similarity_blocks(before, after, own)
    for rows, (original, reduced) in zip(anchor_blocks(len(found)), blocks, strict=True):
        found[rows] = measure(original, reduced).numpy()
    return found


def similarity_blocks(before: FloatArray, after: FloatArray, own: float | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Cosines of some anchors to all rows, in both spaces, a block of anchors at a time.

    Args:
        before: `(n, d)`.
        after: `(n, k)`.
        own: what stands for an anchor's similarity to itself; None leaves the column out.
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
