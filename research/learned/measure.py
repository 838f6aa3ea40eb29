"""What steps gain on held-out queries: query adapters in and out of their domain, and query-aware reduction."""

import time
from collections.abc import Iterator
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.codes.data import Vectors
from benchmarks.codes.measure import average_paired, compute_ndcg
from lathe.transforms import Chain, InputError, QueryAdapter, TransformCoding
from lathe.transforms.base import QueryPairs
from lathe.transforms.learned import query_adapter
from research.learned.data import EncodedTask, Gains

K = 10
"""Number of documents that count."""

BLOCK = 512
"""Number of queries that search at a time."""

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "mined negatives": {"negatives": 4},
}
"""Parameters of the adapters that are compared, by name."""

COUNTS = (50, 100, 200, 400, 800, 1600)
"""Numbers of queries to learn from, for what a number is worth."""

BELOW, MIN_BELOW = "all queries, fewer than the step allows", 20
"""Name of the run on all queries of a task that has too few, and the number from which it is tried."""

GUARD_ORDERS = 3
"""Number of random samples of the queries to learn from, each with its own seed, by which `MIN_GAIN` was chosen."""


BYTES = 48
"""Budget of codes that an adapter is put before."""

Scores = tuple[NDArray[np.float64], NDArray[np.float64]]
"""nDCG@10 and recall@10 of each query."""


def find_nearest(queries: Vectors, documents: Vectors) -> NDArray[np.int64]:
    """Return the rows of the `K` documents with the largest inner products, best first, `(a, K)`."""
    asked, answered = (torch.from_numpy(np.ascontiguousarray(side)) for side in (queries, documents))
    starts = range(0, len(asked), BLOCK)
    parts = [(asked[start : start + BLOCK] @ answered.T).topk(K, dim=1).indices for start in starts]
    return np.asarray(torch.cat(parts).numpy(), np.int64)


def score(queries: Vectors, documents: Vectors, gains: Gains) -> Scores:
    """Return nDCG@10 and recall@10 of queries that search all documents by inner product, `(a,)` each."""
    ids = find_nearest(queries, documents)
    recall = np.empty(len(queries))
    for row, (found, grades) in enumerate(zip(ids, gains, strict=True)):
        relevant = [document for document, grade in grades.items() if grade > 0]
        recall[row] = np.isin(found, relevant).sum() / min(K, len(relevant))
    return compute_ndcg(ids, gains), recall


def gain(after: Scores, before: Scores) -> dict[str, Any]:
    """Return the mean gains in nDCG@10 and recall@10 × 100 with half their 95 % intervals, paired by query."""
    return {
        name: average_paired(100 * (new - old))
        for name, new, old in zip(("ndcg_at_10", "recall_at_10"), after, before, strict=True)
    }


def fit_adapter(
    task: EncodedTask,
    count: int | None = None,
    order: int = 1,
    min_gain: float = query_adapter.MIN_GAIN,
    **parameters: Any,
) -> tuple[QueryAdapter, float] | str:
    """Fit an adapter on a task's queries to train on.

    Args:
        task: the task.
        count: number of queries, the first of a fixed order, also below what the step allows; None for all.
        order: seed of that order.
        min_gain: gain on the held-out queries, in standard errors, up to which the identity is kept.
        parameters: of the step.

    Returns:
        It with CPU seconds, or the reason why it is refused.
    """
    if not len(task.train):
        return "the task has no queries to train on"
    pairs = QueryPairs(task.train, task.documents, task.pairs)
    least = query_adapter.MIN_QUERIES
    if count is not None:
        pairs, least = pairs.select(np.random.default_rng(order).permutation(len(pairs))[:count]), 2
    begun = time.process_time()
    try:
        with patch.object(query_adapter, "MIN_QUERIES", least), patch.object(query_adapter, "MIN_GAIN", min_gain):
            step = QueryAdapter(**parameters).fit(task.documents, pairs=pairs)
    except InputError as error:
        return str(error)
    return step, time.process_time() - begun


def measure_adapters(task: EncodedTask, known: set[str]) -> Iterator[tuple[str, dict[str, Any], Vectors | None]]:
    """Fit the variants of adapters, and the default on fewer queries.

    Measure each on the test queries.

    Args:
        task: the task.
        known: names of what was measured before, and is left out.

    Yields:
        The name of the variant, its figures, and the map W of the default one `(d, d)`, for other tasks.
    """
    before = score(task.test, task.documents, task.task.test_gains)
    runs: dict[str, dict[str, Any]] = dict(VARIANTS)
    runs |= {f"{count} queries": {"count": count} for count in COUNTS if count < len(task.train)}
    if MIN_BELOW <= len(task.train) < query_adapter.MIN_QUERIES:
        runs[BELOW] = {"count": len(task.train)}
    for name, parameters in runs.items():
        if name in known:
            continue
        fitted = fit_adapter(task, **parameters)
        if isinstance(fitted, str):
            yield name, {"refused": fitted}, None
            continue
        step, seconds = fitted
        weight = step.weight.numpy()
        figures = gain(score(task.test @ weight.T, task.documents, task.task.test_gains), before)
        log = step.training_log
        assert log is not None
        figures |= {
            "seconds": seconds,
            "steps": log.steps,
            "distance_to_identity": float(np.linalg.norm(weight - np.eye(len(weight)))),
            "is_identity": bool(torch.equal(step.weight, torch.eye(len(weight)))),
        }
        yield name, figures, weight if name == "default" else None


def measure_guard(task: EncodedTask) -> list[dict[str, Any]]:
    """Train adapters that never fall back to the identity.

    The guard of `QueryAdapter` keeps the identity unless the held-out gain exceeds `MIN_GAIN` standard errors; these
    figures show what each threshold would do. Adapters are trained on `GUARD_ORDERS` random samples of each number of
    queries in `COUNTS` that is smaller than the task's, and on all its queries, once with each seed. Gains are in
    nDCG@10 × 100.

    Args:
        task: task with queries to train on.

    Returns:
        Their gains on held-out and on test queries.
    """
    before = score(task.test, task.documents, task.task.test_gains)
    found = []
    counts = [*(count for count in COUNTS if count < len(task.train)), len(task.train)]
    for count, order in product(counts, range(1, GUARD_ORDERS + 1)):
        fitted = fit_adapter(task, count, order, min_gain=-np.inf, seed=order)
        assert not isinstance(fitted, str)
        step, _ = fitted
        assert step.heldout_gain is not None
        gains = gain(score(task.test @ step.weight.numpy().T, task.documents, task.task.test_gains), before)
        held, error = (100 * value for value in step.heldout_gain)
        found.append({"queries": count, "heldout": held, "standard_error": error, "test": gains["ndcg_at_10"]})
    return found


def measure_out_of_domain(task: EncodedTask, weights: dict[str, Vectors]) -> dict[str, Any]:
    """Return what adapters of other tasks change on the test queries of a task, by the other task's name."""
    before = score(task.test, task.documents, task.task.test_gains)
    return {
        name: gain(score(task.test @ weight.T, task.documents, task.task.test_gains), before)
        for name, weight in weights.items()
        if name != task.task.name
    }


def measure_before_codes(task: EncodedTask, weight: Vectors) -> dict[str, Any]:
    """Return what an adapter gains when it comes before codes, and what the codes lose."""
    codes = Chain([TransformCoding(BYTES, weighting=0.5)]).fit(task.documents)
    documents, gains = codes.floats(task.documents), task.task.test_gains
    full, coded, adapted = (
        score(queries, found, gains)
        for queries, found in (
            (task.test, task.documents),
            (codes.transform_queries(task.test), documents),
            (codes.transform_queries(task.test @ weight.T), documents),
        )
    )
    return {"bytes": BYTES, "codes": gain(coded, full), "adapter": gain(adapted, coded)}
