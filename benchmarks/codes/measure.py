"""Recall of searches by codes: neighbours of the full vectors, and relevant documents of search tasks."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.codes.data import EncodedData
from benchmarks.codes.methods import (
    OPQ_NAMES,
    RABITQ_BITS,
    RESIDUAL,
    SCALAR_BITS,
    TRUNCATION,
    Ids,
    Method,
    Recipe,
    Vectors,
    count_rabitq_dimensions,
    count_scalar_dimensions,
    fit_code_prefix,
    fit_lathe_codes,
    fit_pca_floats,
    fit_product_codes,
    name_rabitq,
    name_scalar,
    train_opq,
    train_rabitq,
    train_residual,
    train_scalar,
    train_truncation,
)
from benchmarks.starters import print_progress
from lathe.training.comparison import mean_interval
from lathe.training.datasets.records import Search

K, CANDIDATES = 10, 40
"""Number of neighbours, and of candidates that are ranked again by the full vectors."""
QUERIES = 1000
"""Number of corpus vectors that search the others."""
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Values of λ that are compared on tasks."""
OURS = "codes"
"""Name of the method that the others are compared with: the step with λ = `WEIGHTING`."""
WEIGHTING = 0.5
"""λ that finds the most neighbours on average, and was the default of the step when this was measured."""
LEARNED, PREFIX = "codes, learned codebooks", "codes, first half of twice the bytes"
OUR_VARIANTS: dict[str, dict[str, Any]] = {
    OURS: {"weighting": WEIGHTING},
    "codes, unweighted": {"weighting": 0},
    "codes, fully weighted": {"weighting": 1},
    "codes, norms not restored": {"restore_norm": False, "weighting": WEIGHTING},
}
"""Parameters of the step by the name of the method, ours first."""
MAX_TRAINED_BYTES = {
    OPQ_NAMES[0]: {0: 192, 1: 48, 2: 48},
    RESIDUAL: {0: 24},
}
"""Largest budget of the rivals that train for minutes, by name and seed: others are not trained."""
MAX_LARGE_CORPUS_BYTES: dict[str, dict[int, int]] = {
    OPQ_NAMES[0]: {0: 48},
    LEARNED: {0: 48},
    **{name: {} for name in (RESIDUAL, PREFIX, *list(OUR_VARIANTS)[1:])},
}
"""Largest budget of methods on the larger corpus, by name and seed: they train for minutes, or are variants of ours."""
LARGE_CORPUS = 50_000
"""Number of texts from which on a corpus is a larger one."""


def list_recipes(train: Vectors, corpus: Vectors, budget: int, seed: int) -> Iterator[Recipe]:
    """Yield every method at a budget of bytes, ours first.

    Nothing is trained until a recipe is built.
    """
    make_recipe = partial(_list_one, train, corpus, budget)
    for name, parameters in OUR_VARIANTS.items():
        yield make_recipe(fit_lathe_codes, name, name, **parameters)
    yield make_recipe(fit_product_codes, LEARNED, LEARNED)
    if budget * 2 <= train.shape[1]:
        yield make_recipe(fit_code_prefix, PREFIX, PREFIX)
    for bits in (1, 2, 4):
        if 8 * budget // bits <= train.shape[1]:
            name = f"PCA, rotation, equal {bits}-bit codes"
            rotated: dict[str, Any] = {"rotation": "random", "weighting": 0, "restore_norm": False}
            yield make_recipe(fit_lathe_codes, name, name, bits=bits, seed=seed, **rotated)
    yield from _list_rivals(train, corpus, budget, seed)


def _list_one(
    train: Vectors, corpus: Vectors, budget: int, build: Callable[..., Method], name: str, *values: Any, **more: Any
) -> Recipe:
    """Return the recipe of one method, which `build` trains with the further arguments."""
    return Recipe((name,), lambda: [build(train, corpus, budget, *values, **more)])


def _list_rivals(train: Vectors, corpus: Vectors, budget: int, seed: int) -> Iterator[Recipe]:
    """Yield the methods of FAISS and truncation at a budget of bytes."""
    make_recipe = partial(_list_one, train, corpus, budget)
    yield Recipe(OPQ_NAMES, lambda: train_opq(train, corpus, budget, seed))
    yield make_recipe(train_residual, RESIDUAL, seed)
    for bits in RABITQ_BITS:
        if count_rabitq_dimensions(train.shape[1], budget, bits):
            yield make_recipe(train_rabitq, name_rabitq(bits), bits)
    for bits in SCALAR_BITS:
        if count_scalar_dimensions(budget, bits) <= train.shape[1]:
            yield make_recipe(train_scalar, name_scalar(bits), bits)
    if budget <= train.shape[1]:
        yield make_recipe(train_truncation, TRUNCATION)


def is_affordable(recipe: Recipe, texts: int, budget: int, seed: int) -> bool:
    """Return whether a method trains within minutes on a corpus.

    Most methods take seconds.

    Args:
        recipe: recipe of the method.
        texts: number of texts of the corpus.
        budget: bytes of a vector.
        seed: the seed.
    """
    limits = [MAX_TRAINED_BYTES, *([MAX_LARGE_CORPUS_BYTES] if texts >= LARGE_CORPUS else [])]
    return all(budget <= limit[recipe.names[0]].get(seed, 0) for limit in limits if recipe.names[0] in limit)


def measure_neighbours(
    vectors: Vectors, budgets: list[int], seeds: int, known: list[dict[str, Any]]
) -> Iterator[list[dict[str, Any]]]:
    """Split vectors into training rows and a corpus by every seed, and measure each method's recall at each budget.

    Args:
        vectors: unit vectors of a corpus `(n, d)`.
        budgets: bytes of a vector.
        seeds: number of seeds.
        known: rows of an earlier run; of these methods only the seeds that it lacks are measured.

    Yields:
        All rows after each seed and budget: recall of every method, averaged over its seeds.
    """
    rows = {(row["budget"], row["method"]): dict(row) for row in known}
    for seed, budget in product(range(seeds), budgets):
        order = np.random.default_rng(seed).permutation(len(vectors))
        corpus, train = vectors[order[: len(vectors) // 3]], vectors[order[len(vectors) // 3 :]]
        recipes = [
            one for one in list_recipes(train, corpus, budget, seed) if is_affordable(one, len(vectors), budget, seed)
        ]
        lacking = [one for one in recipes if len(rows.get((budget, one.names[-1]), {}).get("by_seed", [])) <= seed]
        if not lacking:
            continue
        queries = corpus[:QUERIES]
        # The queries are the corpus's first rows, so row i is the nearest of query i and is left out: (a, K).
        neighbours = _without_itself(np.argsort(-(queries @ corpus.T), axis=1)[:, : K + 1], K)
        # Trained again even if its rows are known: the paired differences need its recall of each query.
        (ours,) = recipes[0].build()
        recall_of_ours, _ = _measure_recall(ours, queries, neighbours)
        for recipe in lacking:
            print_progress(0, f"seed {seed}, {budget} bytes: {recipe.names[0]}")
            for method in recipe.build():
                alone, rescored = _measure_recall(method, queries, neighbours)
                row = rows.setdefault((budget, method.name), {"budget": budget, "method": method.name})
                _add_seed(row, method, alone, rescored, recall_of_ours - alone)
        yield list(rows.values())


def _measure_recall(
    method: Method, queries: Vectors, neighbours: Ids
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the recall of each query `(a,)` among the first K rows found, and among all candidates.

    Raises:
        ValueError: if the method takes more bytes than its budget.
    """
    if method.size > method.budget:
        raise ValueError(f"{method.name} takes {method.size} bytes, {method.budget} are allowed")
    ids = _without_itself(method.search(queries, CANDIDATES + 1), CANDIDATES)
    alone = np.array([np.isin(true, candidates[:K]).mean() for true, candidates in zip(neighbours, ids, strict=True)])
    return alone, np.array([np.isin(true, candidates).mean() for true, candidates in zip(neighbours, ids, strict=True)])


def _add_seed(
    row: dict[str, Any],
    method: Method,
    alone: NDArray[np.float64],
    rescored: NDArray[np.float64],
    ahead: NDArray[np.float64],
) -> None:
    """Add one more seed to the averages of a method's row.

    Args:
        row: averages of the method; changed.
        method: the method with its size.
        alone: recall of each query `(a,)`.
        rescored: recall of each query after rescoring `(a,)`.
        ahead: how far ours is ahead of it for each query `(a,)`.
    """
    known = len(row.get("by_seed", []))

    def average(before: float, new: float) -> float:
        return (known * before + new) / (known + 1)

    new, before = average_paired(ahead), row.get("ours_ahead", {"mean": 0.0, "ci95": 0.0})
    row["bytes"] = method.size
    row["recall_at_10"] = average(row.get("recall_at_10", 0), float(alone.mean()))
    row["by_seed"] = [*row.get("by_seed", []), float(alone.mean())]
    row["recall_at_10_rescored_4x"] = average(row.get("recall_at_10_rescored_4x", 0), float(rescored.mean()))
    # Intervals are averaged too, since seeds share texts.
    row["ours_ahead"] = {key: average(before[key], new[key]) for key in ("mean", "ci95")}


def average_paired(difference: NDArray[np.float64]) -> dict[str, float]:
    """Return the mean of paired differences `(a,)` and half its 95 % interval."""
    low, high = mean_interval(difference).bounds
    return {"mean": float(difference.mean()), "ci95": (high - low) / 2}


def measure_task(data: EncodedData, path: str, budgets: list[int]) -> dict[str, Any]:
    """Fit every method on the documents of a search task, and measure its nDCG@10.

    Losses are relative to the full vectors, × 100.
    """
    contents, documents, queries = data.task(path)
    others = data.other_queries(path)
    gains = list_gains(contents)
    full = compute_ndcg(np.argsort(-(queries @ documents.T), axis=1)[:, :K], gains)
    rows = []
    for budget in budgets:
        methods = [fit_lathe_codes(documents, documents, budget, f"codes, λ = {w}", weighting=w) for w in WEIGHTS]
        coded: dict[str, Any] = {"restore_norm": False}
        methods += [
            fit_lathe_codes(documents, documents, budget, f"codes, λ = {w}, norms not restored", weighting=w, **coded)
            for w in WEIGHTS
        ]
        if len(others):
            methods += [
                fit_lathe_codes(documents, documents, budget, f"codes, λ = {w}, by queries", others, weighting=w)
                for w in WEIGHTS[1:]
            ]
        methods += [fit_product_codes(documents, documents, budget, f"{LEARNED}, λ = {w}", w) for w in (0.0, 0.5)]
        methods += train_opq(documents, documents, budget, 0)
        width = documents.shape[1]
        methods += [
            train_rabitq(documents, documents, budget, bits)
            for bits in RABITQ_BITS
            if count_rabitq_dimensions(width, budget, bits)
        ]
        methods += [
            train_scalar(documents, documents, budget, bits)
            for bits in SCALAR_BITS
            if count_scalar_dimensions(budget, bits) <= width
        ]
        methods += [train_truncation(documents, documents, budget)]
        for method in methods:
            difference = 100 * (compute_ndcg(method.search(queries, K), gains) - full)
            rows.append({"budget": budget, "method": method.name, "loss": average_paired(difference)})
    floats = fit_pca_floats(documents, documents, 128)
    difference = 100 * (compute_ndcg(floats.search(queries, K), gains) - full)
    rows.append({"budget": floats.budget, "method": floats.name, "loss": average_paired(difference)})
    return {"documents": len(documents), "queries": len(queries), "full": 100 * float(full.mean()), "methods": rows}


def list_gains(contents: Search) -> list[dict[int, int]]:
    """Return the grades of the judged documents of each query, by row."""
    rows = {key: row for row, key in enumerate(contents.corpus)}
    return [{rows[key]: grade for key, grade in judged.items()} for judged in contents.relevant.values()]


def compute_ndcg(ids: Ids, gains: list[dict[int, int]]) -> NDArray[np.float64]:
    """Compute nDCG@k of the found rows `(a, k)` of each query `(a,)`, with linear gains as in trec_eval."""
    discounts = 1 / np.log2(np.arange(2, ids.shape[1] + 2))
    values = np.empty(len(ids))
    for i, (row, grades) in enumerate(zip(ids, gains, strict=True)):
        best = np.sort(list(grades.values()))[::-1][: len(discounts)]
        reached = np.array([grades.get(int(document), 0) for document in row])
        values[i] = (reached * discounts).sum() / (best * discounts[: len(best)]).sum()
    return values


def _without_itself(ids: Ids, k: int) -> Ids:
    """Remove row i from the ids found for query i `(a, k + 1)`, and return the first k of the others."""
    remaining = [row[row != i][:k] for i, row in enumerate(ids)]
    return np.array(remaining)
