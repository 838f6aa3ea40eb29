"""What searches by codes find: neighbours of the full vectors, and relevant documents."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.codes.data import HalvedSearch
from benchmarks.codes.methods import ONE_BIT, OURS, PRODUCT, Ids, Recipe
from lathe.training.comparison import mean_interval
from lathe.training.datasets.records import Search

K, CANDIDATES = 10, 40
"""Number of neighbours, and of candidates that are ranked again by the full vectors."""
QUERIES = 1000
"""Number of corpus vectors that search the others."""
MEASURES = ("recall_at_10", "recall_at_10_rescored_4x", "ndcg_at_10")
"""What is measured for each query; nDCG only where documents are judged."""
COMPARED = {"ours_ahead": OURS, "product_ahead": PRODUCT, "one_bit_ahead": ONE_BIT}
"""Our families whose lead over the others is reported, by the name of the lead."""


def measure_recipe(
    recipe: Recipe, data: HalvedSearch, fit_on_searched: bool, budget: int, nearest: Ids
) -> list[dict[str, Any]]:
    """Fit methods on one half of the documents, or on the searched half itself, and search the other.

    Args:
        recipe: the methods.
        data: the search.
        fit_on_searched: whether they are fitted on the half that is searched.
        budget: bytes of a vector.
        nearest: the rows nearest to each query by the full vectors, `(a, K)`.

    Returns:
        For each method its family, setting, bytes, and a list of values by query for each measure.

    Raises:
        ValueError: if a method takes more bytes than its budget.
    """
    rows = []
    for method in recipe.build(data.searched if fit_on_searched else data.fitted, data.searched):
        if method.size > budget:
            raise ValueError(f"{method.family} takes {method.size} bytes, {budget} are allowed")
        ids = np.asarray(method.search(data.queries, CANDIDATES), np.int64)
        row: dict[str, Any] = {"family": method.family, "setting": method.setting, "bytes": method.size}
        found = (ids[:, :, None] == nearest[:, None]).any(axis=2)
        row |= {"recall_at_10": found[:, :K].mean(axis=1), "recall_at_10_rescored_4x": found.sum(axis=1) / K}
        if data.gains:
            row["ndcg_at_10"] = compute_ndcg(ids[:, :K], data.gains)
        rows.append(row | {name: row[name].round(3).tolist() for name in MEASURES if name in row})
    return rows


def choose_settings(cells: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each family at its best setting, for each measure, encoder, kind of fit and budget, in every search.

    The setting is chosen by the test itself. That favours the rivals, because ours have one setting.

    Args:
        cells: an entry for each encoder, search, kind of fit and budget, whose `methods` `measure_recipe` returned.
    """
    groups = defaultdict(list)
    for cell in cells:
        groups[cell["encoder"], cell["fit"], cell["budget"]].append(cell)
    for group in groups.values():
        for measure in MEASURES:
            judged = [cell for cell in group if measure in cell["methods"][0]]
            means: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
            for row in (row for cell in judged for row in cell["methods"]):
                means[row["family"]][row["setting"]].append(float(np.mean(row[measure])))
            best = {
                family: max((float(np.mean(values)), setting) for setting, values in settings.items())[1]
                for family, settings in means.items()
            }
            for cell in judged:
                for row in cell["methods"]:
                    if best[row["family"]] == row["setting"]:
                        yield {"cell": cell, "measure": measure, "row": row}


def summarize(cells: list[dict[str, Any]], encoders: Iterable[str]) -> list[dict[str, Any]]:
    """Average each family at its best settings over the searches of encoders, in points.

    The encoders and searches stand for themselves: intervals (95 %) are those of their queries.

    Returns:
        An entry for each kind of fit, budget, measure and family with its mean, the mean change from the full vectors
        of nDCG, and how far our families are ahead of it in the searches that both have.
    """
    groups: dict[tuple[Any, ...], dict[str, list[NDArray[np.float64]]]] = defaultdict(dict)
    full: dict[tuple[Any, ...], list[float]] = {}
    included = set(encoders)
    for chosen in choose_settings([cell for cell in cells if cell["encoder"] in included]):
        cell, measure, row = chosen["cell"], chosen["measure"], chosen["row"]
        key = cell["fit"], cell["budget"], measure
        groups[key].setdefault(row["family"], []).append(100 * np.array(row[measure]))
        full.setdefault(key, []) if row["family"] != OURS else full.setdefault(key, []).append(cell["ndcg_of_floats"])

    summary = []
    for (fit, budget, measure), families in groups.items():
        for family, values in families.items():
            entry = {"fit": fit, "budget": budget, "measure": measure, "family": family, "searches": len(values)}
            entry["mean"] = float(np.mean([one.mean() for one in values]))
            if measure == "ndcg_at_10":
                entry["change"] = entry["mean"] - 100 * float(np.mean(full[fit, budget, measure]))
            for name, ours in COMPARED.items():
                if len(values) == len(families.get(ours, [])):
                    pairs = zip(families[ours], values, strict=True)
                    ahead = average_differences([own - other for own, other in pairs])
                    entry[name] = dict(zip(("mean", "ci95"), ahead, strict=True))
            summary.append(entry)
    return summary


def average_differences(differences: list[NDArray[np.float64]]) -> tuple[float, float]:
    """Return the mean over searches of the mean difference of queries, and half its 95 % interval."""
    mean = float(np.mean([one.mean() for one in differences]))
    variance = sum(one.var(ddof=1) / len(one) for one in differences)
    return mean, 1.96 * float(np.sqrt(variance)) / len(differences)


def average_paired(difference: NDArray[np.float64]) -> dict[str, float]:
    """Return the mean of paired differences `(a,)` and half its 95 % interval."""
    low, high = mean_interval(difference).bounds
    return {"mean": float(difference.mean()), "ci95": (high - low) / 2}


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
