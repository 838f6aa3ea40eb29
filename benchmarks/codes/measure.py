"""What searches by codes find: neighbours of the full vectors, and relevant documents of search tasks."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.codes.data import EncodedData
from benchmarks.codes.methods import (
    Ids,
    Method,
    Vectors,
    code_prefix,
    lathe_codes,
    opq,
    pca_floats,
    product_codes,
    rabitq,
    residual,
    scalar,
    truncation,
)
from benchmarks.starters import show
from training.datasets.contents import Search
from training.evaluation.statistics import mean_interval

K, CANDIDATES = 10, 40
"""Neighbours that are looked for, and candidates that are ranked again by the full vectors."""
MAX_OPQ_BYTES = {0: 96, 1: 48, 2: 48}
"""Largest budget at which OPQ is trained, by seed: it takes a minute and a half at 96 bytes, and more beyond."""
MAX_RESIDUAL_BYTES = {0: 24}
"""Largest budget at which the residual quantizer is trained, by seed; a training takes two minutes."""
QUERIES = 1000
"""Number of corpus vectors that search the others."""
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Values of λ that are compared on tasks."""
OURS = "codes"
"""Name of the method that the others are compared with: the step as it is by default."""


def neighbour_methods(train: Vectors, corpus: Vectors, budget: int, seed: int) -> Iterator[Method]:
    """Yield every method at a budget of bytes, ours first."""
    yield lathe_codes(train, corpus, budget, OURS)
    yield product_codes(train, corpus, budget, "codes, learned codebooks")
    yield lathe_codes(train, corpus, budget, "codes, unweighted", weighting=0)
    yield lathe_codes(train, corpus, budget, "codes, fully weighted", weighting=1)
    yield lathe_codes(train, corpus, budget, "codes, norms not restored", restore_norm=False)
    if budget * 2 <= train.shape[1]:
        yield code_prefix(train, corpus, budget, "codes, first half of twice the bytes")
    yield from rivals(train, corpus, budget, seed)


def rivals(train: Vectors, corpus: Vectors, budget: int, seed: int) -> Iterator[Method]:
    """Yield the rivals at a budget of bytes."""
    for bits in (1, 2, 4):
        if 8 * budget // bits <= train.shape[1]:
            more: dict[str, Any] = {
                "bits": bits,
                "rotation": "random",
                "seed": seed,
                "weighting": 0,
                "restore_norm": False,
            }
            yield lathe_codes(train, corpus, budget, f"PCA, rotation, equal {bits}-bit codes", None, **more)
    if budget <= MAX_OPQ_BYTES.get(seed, 0):
        yield from opq(train, corpus, budget, seed)
    if budget <= MAX_RESIDUAL_BYTES.get(seed, 0):
        yield residual(train, corpus, budget)
    for bits in (1, 2, 3, 4):
        if (found := rabitq(train, corpus, budget, bits)) is not None:
            yield found
    for bits in (4, 6, 8):
        if (found := scalar(train, corpus, budget, bits)) is not None:
            yield found
    if budget <= train.shape[1]:
        yield truncation(train, corpus, budget)


def measure_neighbours(vectors: Vectors, budgets: list[int], seeds: int) -> list[dict[str, Any]]:
    """Split vectors into training rows and a corpus, by every seed; return each method's recall at each budget."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(vectors))
        corpus, train = vectors[order[: len(vectors) // 3]], vectors[order[len(vectors) // 3 :]]
        asked = corpus[:QUERIES]
        wanted = _without_itself(np.argsort(-(asked @ corpus.T), axis=1)[:, : K + 1], K)
        for budget in budgets:
            ours = None
            for method in neighbour_methods(train, corpus, budget, seed):
                show(0, f"seed {seed}, {budget} bytes: {method.name}")
                if method.size > budget:
                    raise ValueError(f"{method.name} takes {method.size} bytes, {budget} are allowed")
                ids = _without_itself(method.search(asked, CANDIDATES + 1), CANDIDATES)
                alone = np.array([np.isin(w, i[:K]).mean() for w, i in zip(wanted, ids, strict=True)])
                rescored = np.array([np.isin(w, i).mean() for w, i in zip(wanted, ids, strict=True)])
                ours = alone if ours is None else ours
                one = found.setdefault((budget, method.name), {"bytes": method.size, "alone": [], "ahead": []})
                one["alone"].append(alone)
                one.setdefault("rescored", []).append(rescored)
                one["ahead"].append(ours - alone)
    return [
        {
            "budget": budget,
            "method": name,
            "bytes": one["bytes"],
            "recall_at_10": float(np.mean(one["alone"])),
            "by_seed": [float(values.mean()) for values in one["alone"]],
            "recall_at_10_rescored_4x": float(np.mean(one["rescored"])),
            "ours_ahead": paired(one["ahead"]),
        }
        for (budget, name), one in found.items()
    ]


def paired(differences: list[NDArray[np.float64]]) -> dict[str, float]:
    """Return the mean difference and half its 95 % interval over the queries of one seed: seeds share texts."""
    bounds = [mean_interval(one).bounds for one in differences]
    widths = [(high - low) / 2 for low, high in bounds]
    return {"mean": float(np.mean([one.mean() for one in differences])), "ci95": float(np.mean(widths))}


def measure_task(data: EncodedData, path: str, budgets: list[int]) -> dict[str, Any]:
    """Fit every method on the documents of a search task; return its nDCG@10 less that of the full vectors, × 100."""
    contents, documents, queries = data.task(path)
    others = data.other_queries(path)
    gains = list_gains(contents)
    full = ndcg(np.argsort(-(queries @ documents.T), axis=1)[:, :K], gains)
    rows = []
    for budget in budgets:
        made = [lathe_codes(documents, documents, budget, f"codes, λ = {w}", weighting=w) for w in WEIGHTS]
        coded: dict[str, Any] = {"restore_norm": False}
        made += [
            lathe_codes(documents, documents, budget, f"codes, λ = {w}, norms not restored", weighting=w, **coded)
            for w in WEIGHTS
        ]
        if len(others):
            made += [
                lathe_codes(documents, documents, budget, f"codes, λ = {w}, by queries", others, weighting=w)
                for w in WEIGHTS[1:]
            ]
        made += [
            product_codes(documents, documents, budget, f"codes, learned codebooks, λ = {w}", w) for w in (0.0, 0.5)
        ]
        made += opq(documents, documents, budget, 0)
        made += [one for bits in (1, 2, 3, 4) if (one := rabitq(documents, documents, budget, bits)) is not None]
        made += [one for bits in (4, 6, 8) if (one := scalar(documents, documents, budget, bits)) is not None]
        made += [truncation(documents, documents, budget)]
        for method in made:
            difference = 100 * (ndcg(method.search(queries, K), gains) - full)
            rows.append({"budget": budget, "method": method.name, "loss": paired([difference])})
    floats = pca_floats(documents, documents, 128)
    difference = 100 * (ndcg(floats.search(queries, K), gains) - full)
    rows.append({"budget": floats.budget, "method": floats.name, "loss": paired([difference])})
    return {"documents": len(documents), "queries": len(queries), "full": 100 * float(full.mean()), "methods": rows}


def list_gains(contents: Search) -> list[dict[int, int]]:
    """Return the grade of each judged document by its row, for each query."""
    rows = {key: row for row, key in enumerate(contents.corpus)}
    return [{rows[key]: grade for key, grade in judged.items()} for judged in contents.relevant.values()]


def ndcg(ids: Ids, gains: list[dict[int, int]]) -> NDArray[np.float64]:
    """Return nDCG@k of the found rows `(a, k)`, `(a,)`, with linear gains as in trec_eval."""
    discounts = 1 / np.log2(np.arange(2, ids.shape[1] + 2))
    found = np.empty(len(ids))
    for i, (row, grades) in enumerate(zip(ids, gains, strict=True)):
        best = np.sort(list(grades.values()))[::-1][: len(discounts)]
        reached = np.array([grades.get(int(document), 0) for document in row])
        found[i] = (reached * discounts).sum() / (best * discounts[: len(best)]).sum()
    return found


def _without_itself(ids: Ids, k: int) -> Ids:
    """Remove row i from the ids found for query i `(a, k + 1)`; return the k first of the others."""
    kept = [row[row != i][:k] for i, row in enumerate(ids)]
    return np.array(kept)
