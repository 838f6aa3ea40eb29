"""Metrics of how well a reduction preserves the geometry of vectors, computed in blocks of rows.

Arguments named `before` and `after` are the same n rows before and after the reduction, `(n, d)` and `(n, k)`.
Similarities are cosines; distances are Euclidean, without normalization.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lathe.transforms.errors import InputError
from lathe.transforms.statistics import Moments, distances, participation_ratio, unit_rows
from lathe.transforms.vectors import FloatArray, as_numpy

NORMAL_QUANTILE = 1.96
"""Half the extent of a 95 % interval of a normal mean, in standard errors."""

MAX_BLOCK_ENTRIES = 2**20
"""Maximum number of cosines in a block: for 52 rows to n = 20,000 rows, 8 MB in float64."""

COMPAT_TOLERANCE = 1e-3
"""Tolerance that ann-benchmarks adds to the distance of the k-th neighbour."""


def local_spearman(before: FloatArray, after: FloatArray) -> float:
    """Return the mean over rows of the Spearman correlation between a row's cosines before and after a reduction.

    A row's cosines are to all other rows. Ties get their average rank. In the GeoPres paper this metric correlates with
    downstream quality (Table 1, ρ=0.94).

    Raises:
        InputError: with fewer than 3 rows, or rows that do not correspond.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import local_spearman
        >>> rows = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
        >>> round(local_spearman(rows, 2 * rows), 6), local_spearman(rows, rows[:, :4]) < 0.9
        (1.0, True)
    """
    return float(local_spearman_per_row(before, after).mean())


def local_spearman_per_row(before: FloatArray, after: FloatArray) -> NDArray[np.float64]:
    """Return, for each row, the Spearman correlation of its cosines to the others before and after a reduction.

    The result is `(n,)` float64. `local_spearman` is its mean.
    """
    _require_same_rows(before, after, at_least=3)

    def rank_correlation(original: Tensor, reduced: Tensor) -> Tensor:
        return correlation(average_ranks(original), average_ranks(reduced))

    return _measure_rows(before, after, None, rank_correlation)


def pearson_compat(before: FloatArray, after: FloatArray) -> float:
    """Return the mean over rows of the Pearson correlation between a row's cosines before and after a reduction.

    A row's cosines are to all other rows. The published GeoPres code reports this value as Spearman: its soft ranks, at
    strength 1, are an affine function of the cosines. Use it only for comparison with those numbers.

    Raises:
        InputError: with fewer than 3 rows, or rows that do not correspond.
    """
    _require_same_rows(before, after, at_least=3)
    return float(_measure_rows(before, after, None, lambda x, y: correlation(x.double(), y.double())).mean())


def recall_at_k(
    before: FloatArray, after: FloatArray, k: int = 10, oversampling: int = 1, compat: bool = False
) -> float:
    """Return recall@k of a reduction: the mean share of a row's k nearest neighbours that are found after it.

    They are the k nearest by cosine before the reduction, and found if they are among the k nearest after it. A row is
    not its own neighbour. With `oversampling`, the share of neighbours among the k·oversampling nearest after the
    reduction: the recall of a search that rescores these candidates by the original cosines. With `compat`, as
    ann-benchmarks counts: a rescored result is right if its cosine is at most 1e-3 below the cosine of the k-th
    neighbour, so that ties and near-ties do not count as errors.

    Raises:
        InputError: if there are not more than k·oversampling rows, k or oversampling is below 1, or rows do not
            correspond.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import recall_at_k
        >>> rows = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
        >>> recall_at_k(rows, -rows, k=5), recall_at_k(rows, rows[:, :4], k=5) < 1
        (1.0, True)
    """
    return float(recall_per_row(before, after, k, oversampling, compat).mean())


def recall_per_row(
    before: FloatArray, after: FloatArray, k: int = 10, oversampling: int = 1, compat: bool = False
) -> NDArray[np.float64]:
    """Return, for each row, the share of k nearest neighbours that a reduction keeps. Too few rows raise.

    The result is `(n,)` float64. `recall_at_k` is its mean; parameters and errors are as there.
    """
    if k < 1 or oversampling < 1:
        raise InputError(f"k and the oversampling must be at least 1, got {k} and {oversampling}")

    _require_same_rows(before, after, at_least=k * oversampling + 1)

    def shares(original: Tensor, reduced: Tensor) -> Tensor:
        nearest = original.topk(k, dim=1)
        # (b, k·oversampling): what a search of the reduced vectors would rescore.
        candidates = reduced.topk(k * oversampling, dim=1).indices
        if compat:
            returned = original.gather(1, candidates).topk(k, dim=1).values
            right = returned >= nearest.values[:, -1:] - COMPAT_TOLERANCE
        else:
            right = (nearest.indices.unsqueeze(2) == candidates.unsqueeze(1)).any(2)

        return right.double().mean(1)

    # At −∞ a row is never its own neighbour, and column numbers stay row numbers, which `shares` compares.
    return _measure_rows(before, after, -torch.inf, shares)


def cross_recall_at_k(outputs: FloatArray, targets: FloatArray, k: int = 10) -> float:
    """Return the mean recall@k of searches among the targets, with outputs of an alignment as queries.

    The right answers are the k nearest neighbours of the target that the output should equal. Row i of `outputs` is
    compared with all targets except target i, by cosine.

    Args:
        outputs: aligned vectors, `(n, d)`.
        targets: vectors that the outputs should equal, `(n, d)`.
        k: number of neighbours.

    Raises:
        InputError: if there are not more than k rows, or the two do not correspond.
    """
    _require_same_rows(outputs, targets, at_least=k + 1)
    x, y = (normalized_rows(a, np.float32) for a in (outputs, targets))
    recalls = np.empty(len(x))

    for rows in row_slices(len(x)):
        # Target i is left out of both searches: as its own query it would always be found first.
        own_columns = torch.arange(rows.start, rows.stop).unsqueeze(1)
        nearest, returned = (
            (queries[rows] @ y.T).scatter(1, own_columns, -torch.inf).topk(k, dim=1).indices for queries in (y, x)
        )
        recalls[rows] = (nearest.unsqueeze(2) == returned.unsqueeze(1)).any(2).double().mean(1).numpy()

    return float(recalls.mean())


def search_recall_per_row(
    before: FloatArray, queries: FloatArray, documents: FloatArray, k: int = 10, oversampling: int = 1
) -> NDArray[np.float64]:
    """Return, for each row, the recall@k of its search by inner product, `(n,)` float64. Too few rows raise.

    Queries and documents are encoded differently. Row i of `queries` searches all documents except its own, i; its
    right answers are the k nearest neighbours of row i by cosine before. With `oversampling`, the share of neighbours
    among the k·oversampling best, as in `recall_at_k`.

    Args:
        before: rows before the reduction, `(n, d)`.
        queries: the same rows encoded as queries, `(n, m)`.
        documents: the same rows encoded as documents, `(n, m)`.
        k: number of neighbours.
        oversampling: candidates for each neighbour.

    Raises:
        InputError: if there are not more than k·oversampling rows, or rows do not correspond.
    """
    _require_same_rows(queries, documents, at_least=k * oversampling + 1)
    _require_same_rows(before, queries, at_least=1)
    x = normalized_rows(before, np.float32)
    query_rows, document_rows = (torch.from_numpy(as_numpy(side)) for side in (queries, documents))
    recalls = np.empty(len(x))

    for rows in row_slices(len(x)):
        own_columns = torch.arange(rows.start, rows.stop).unsqueeze(1)
        # nearest (b, k) by cosine before, candidates (b, k·oversampling) by inner product after.
        nearest = (x[rows] @ x.T).scatter(1, own_columns, -torch.inf).topk(k, dim=1).indices
        candidates = (
            (query_rows[rows] @ document_rows.T)
            .scatter(1, own_columns, -torch.inf)
            .topk(k * oversampling, dim=1)
            .indices
        )
        recalls[rows] = (nearest.unsqueeze(2) == candidates.unsqueeze(1)).any(2).double().mean(1).numpy()

    return recalls


def measure_score_errors(queries: FloatArray, exact: FloatArray, documents: FloatArray) -> tuple[float, float]:
    """Return mean and variance of the error that quantization causes in scores, ⟨q_i, x̂_j⟩ − ⟨q_i, x_j⟩, i ≠ j.

    Args:
        queries: q, `(n, m)`.
        exact: the documents as floats, x, `(n, m)`.
        documents: what their codes stand for, x̂, `(n, m)`.

    Raises:
        InputError: with fewer than 2 rows, or rows that do not correspond.
    """
    _require_same_rows(queries, documents, at_least=2)
    _require_same_rows(exact, documents, at_least=2)
    query_rows, errors = (torch.from_numpy(as_numpy(side).astype(np.float64)) for side in (queries, documents - exact))
    pairs = len(query_rows) * (len(query_rows) - 1)
    # Pairs of a row with itself are in the blocks below, so they are taken out of the sums here.
    own_errors = (query_rows * errors).sum(1)
    total, squares = -float(own_errors.sum()), -float(own_errors.square().sum())

    for rows in row_slices(len(query_rows)):
        block = query_rows[rows] @ errors.T
        total, squares = total + float(block.sum()), squares + float(block.square().sum())

    mean = total / pairs
    return mean, squares / pairs - mean**2


def positional_stress(before: FloatArray, after: FloatArray) -> float:
    """Return the mean squared change of the distance between two rows in a reduction, over all pairs of rows.

    It is the mean of (δ_ij − d_ij)², δ and d the Euclidean distances before and after: GeoPres Eq. 1.

    Raises:
        InputError: with fewer than 2 rows, or rows that do not correspond.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import positional_stress
        >>> rows = np.array([[0, 0], [3, 4]], np.float32)
        >>> positional_stress(rows, 2 * rows)  # the distance grows from 5 to 10
        25.0
    """
    _require_same_rows(before, after, at_least=2)
    x, y = (torch.from_numpy(as_numpy(a).astype(np.float64)) for a in (before, after))
    # `distances` uses dot products, which cancel less if rows are centred; no distance changes.
    x, y = x - x.mean(0), y - y.mean(0)
    return _mean_square_over_pairs(len(x), lambda rows: distances(x[rows], x) - distances(y[rows], y))


def angular_stress(before: FloatArray, after: FloatArray) -> float:
    """Return the mean squared change of the cosine between two rows in a reduction, over all pairs of rows.

    It is the mean of (s_ij − t_ij)², s and t the cosines before and after: GeoPres Eq. 3.

    Raises:
        InputError: with fewer than 2 rows, or rows that do not correspond.
    """
    _require_same_rows(before, after, at_least=2)
    x, y = (normalized_rows(a, np.float64) for a in (before, after))
    return _mean_square_over_pairs(len(x), lambda rows: x[rows] @ x.T - y[rows] @ y.T)


def _mean_square_over_pairs(n: int, errors: Callable[[slice], Tensor]) -> float:
    """Return the mean of squared errors over all ordered pairs i ≠ j of n rows.

    `errors` takes a slice of b rows and returns their errors with all rows, `(b, n)`; the error of a row with itself is
    overwritten by 0.
    """
    total = 0.0
    for rows in row_slices(n):
        block = errors(rows)
        block[torch.arange(len(block)), torch.arange(rows.start, rows.stop)] = 0
        total += float(block.square().sum())
    return total / (n * (n - 1))


def isoscore(moments: Moments) -> float:
    """Return the IsoScore of rows, from their moments.

    It is 0 if all variance is in one direction, 1 if it is equal in all, and 0 for fewer than 2 dimensions, or without
    variance. IsoScore equals (PR − 1)/(d − 1) with the participation ratio PR = tr(C)²/‖C‖²_F of the covariance C, so
    that no eigenvalues are needed.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import Moments, isoscore
        >>> rows = np.random.default_rng(0).normal(size=(2000, 8))
        >>> isoscore(Moments.from_vectors(rows)) > 0.95
        True
        >>> isoscore(Moments.from_vectors(rows * [100, 1, 1, 1, 1, 1, 1, 1])) < 0.01
        True
    """
    if moments.dimensions < 2:
        return 0.0
    ratio = participation_ratio(moments.covariance(ddof=0))
    return (ratio - 1) / (moments.dimensions - 1) if ratio > 0 else 0.0


def row_slices(n: int) -> Iterator[slice]:
    """Yield slices that divide n rows into blocks for similarities to all n rows.

    A block has at most `MAX_BLOCK_ENTRIES` similarities, and at least one row.
    """
    step = max(1, MAX_BLOCK_ENTRIES // n)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def _measure_rows(
    before: FloatArray, after: FloatArray, self_similarity: float | None, measure: Callable[[Tensor, Tensor], Tensor]
) -> NDArray[np.float64]:
    """Return `measure` `(n,)` of each row's cosines to all rows, before and after a reduction, block by block.

    `measure` takes two blocks that `_similarity_blocks` yields and returns `(b,)`. The cosine of a row with itself
    becomes `self_similarity`, or is left out if that is None. The result is allocated first: small results between
    large blocks would fragment the heap, and 20,000 rows would take gigabytes.
    """
    results = np.empty(before.shape[0])
    blocks = _similarity_blocks(before, after, self_similarity)
    for rows, (original, reduced) in zip(row_slices(len(results)), blocks, strict=True):
        results[rows] = measure(original, reduced).numpy()
    return results


def _similarity_blocks(
    before: FloatArray, after: FloatArray, self_similarity: float | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the cosines of each block of b rows to the other rows before and after a reduction, `(b, n−1)` each.

    Args:
        before: `(n, d)`.
        after: `(n, k)`.
        self_similarity: None leaves out the cosine of a row with itself; a value replaces it, which gives `(b, n)`.
    """
    unit_vectors = [normalized_rows(a, np.float32) for a in (before, after)]
    n = before.shape[0]
    for rows in row_slices(n):
        count = rows.stop - rows.start
        is_self = torch.zeros(count, n, dtype=torch.bool)
        is_self[torch.arange(count), torch.arange(rows.start, rows.stop)] = True
        blocks = [vectors[rows] @ vectors.T for vectors in unit_vectors]

        if self_similarity is None:
            # A boolean mask flattens; every row loses exactly one entry, so `view` restores the rows.
            first, second = (block[~is_self].view(count, n - 1) for block in blocks)
        else:
            first, second = (block.masked_fill_(is_self, self_similarity) for block in blocks)

        yield first, second


def normalized_rows(vectors: FloatArray, dtype: type[np.floating[Any]]) -> Tensor:
    """Return rows `(n, d)` L2-normalized, as a new tensor of dtype `dtype`.

    Near-zero rows become zeros.
    """
    # `astype` copies, and torch warns about arrays that it may not write to, such as memory maps.
    return unit_rows(torch.from_numpy(as_numpy(vectors).astype(dtype)))


def average_ranks(values: Tensor) -> Tensor:
    """Return the rank of each entry within its row, ascending from 0, as float64 `(b, n)`. Ties get the mean rank."""
    ordered, order = values.sort(dim=1)
    groups = torch.zeros_like(order)
    groups[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
    # Entries of equal value are one group, and get the mean of their positions in the sorted row.
    positions = torch.arange(values.shape[1], dtype=torch.float64).expand(values.shape)
    zeros = torch.zeros_like(positions, memory_format=torch.contiguous_format)
    sums = zeros.scatter_add(1, groups, positions)
    counts = zeros.scatter_add(1, groups, torch.ones_like(zeros))
    averages = (sums / counts.clamp(min=1)).gather(1, groups)

    return zeros.scatter(1, order, averages)


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Return the Pearson correlation `(b,)` of each row of `a` `(b, n)` with the same row of `b` `(b, n)`.

    It is 0 if one of the two rows is constant.
    """
    a = a - a.mean(1, keepdim=True)
    b = b - b.mean(1, keepdim=True)
    scale = a.norm(dim=1) * b.norm(dim=1)
    return (a * b).sum(1) / torch.where(scale == 0, 1, scale)


def _require_same_rows(before: FloatArray, after: FloatArray, at_least: int) -> None:
    """Check that `before` and `after` have the same number of rows, and at least `at_least`.

    Raises:
        InputError: if the numbers differ, or are too small.
    """
    if before.shape[0] != after.shape[0]:
        raise InputError(f"{before.shape[0]} rows before and {after.shape[0]} after do not correspond")
    if before.shape[0] < at_least:
        raise InputError(f"this needs at least {at_least} rows, got {before.shape[0]}")


Rows = NDArray[np.float32]


def compare_neighbours(raw: Rows, first: Rows, second: Rows, k: int = 10) -> dict[str, Any]:
    """Compare the nearest neighbours, by cosine, of rows and of what two chains of transforms make of them.

    Args:
        raw: `(n, d)`, distinct rows.
        first: what one chain makes of them, `(n, k₁)`.
        second: what another chain makes of them, `(n, k₂)`.
        k: number of neighbours of each row.

    Returns:
        `{agreement_at_k, raw_recall_at_k: {first, second, difference}}`: the mean share of a row's k neighbours that
        both chains have, the recall of its raw neighbours by each chain, and the second's recall minus the first's.
        Each is `{value, low, high}` with a 95 % interval over the rows. Rows that are not finite share no neighbours.

    Raises:
        InputError: if there are not more than k rows.
    """
    if len(raw) <= k:
        raise InputError(f"{k} neighbours need more than {k} rows, got {len(raw)}")

    by_first, by_second = _share_neighbours(raw, first, k), _share_neighbours(raw, second, k)

    return {
        "agreement_at_k": _compute_interval(_share_neighbours(first, second, k)),
        "raw_recall_at_k": {
            "first": _compute_interval(by_first),
            "second": _compute_interval(by_second),
            "difference": _compute_interval(by_second - by_first, minimum=-1.0),
        },
    }


def _share_neighbours(first: Rows, second: Rows, k: int) -> NDArray[np.float64]:
    """Return, for each row, the share of k nearest neighbours kept from `first` to `second`, 0 if not finite.

    The result is `(n,)`, 0 for a row that is not finite in one of the two. All shares are 0 if at most k rows are
    finite.
    """
    shares = np.zeros(len(first))
    is_finite = np.isfinite(first).all(axis=1) & np.isfinite(second).all(axis=1)
    if is_finite.sum() > k:
        shares[is_finite] = recall_per_row(first[is_finite], second[is_finite], k)
    return shares


def _compute_interval(values: NDArray[np.float64], minimum: float = 0.0) -> dict[str, float]:
    """Return the mean of values and its 95 % interval, by the normal approximation, as `{"value", "low", "high"}`.

    The bounds are clipped to [`minimum`, 1].
    """
    mean, error = float(values.mean()), float(values.std(ddof=1)) / np.sqrt(len(values))
    low, high = max(mean - NORMAL_QUANTILE * error, minimum), min(mean + NORMAL_QUANTILE * error, 1.0)
    return {"value": mean, "low": float(low), "high": float(high)}
