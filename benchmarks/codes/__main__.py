"""Compares codes with those of FAISS and of other packages at equal bytes: recall of neighbours, nDCG, rates.

    python -m benchmarks.codes --data FOLDER --encoders FOLDER --work FOLDER --out benchmarks/results

Half of a task's documents are searched by codes that were fitted on the other half, and by codes that were fitted on
the searched half itself. Each method's figures are stored in the work folder at once: a run that was stopped goes on.
"""

import json
import sys
from collections.abc import Iterator
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import orjson
import torch

from benchmarks.codes.data import MANY_KINDS, SEARCHES, EncodedData, HalvedSearch, list_encoders, make_data_parser
from benchmarks.codes.measure import MEASURES, K, compute_ndcg, measure_recipe, summarize
from benchmarks.codes.methods import Recipe, list_recipes, rank_best
from benchmarks.codes.packages import list_missing, list_package_recipes
from benchmarks.codes.plot import write_plot
from benchmarks.codes.rates import measure_rates
from benchmarks.report import markdown_table, write_report
from benchmarks.starters import print_progress

BUDGETS = (24, 48, 96)
FITS = {"other half": False, "searched half": True}
"""Whether codes are fitted on the half that is searched, by name."""


def main() -> None:
    """Measure, print the tables, and write the raw figures."""
    options = make_data_parser(__doc__)
    options.add_argument("--measured", action="store_true", help="report what the work folder has, and measure nothing")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    encoders = list_encoders(arguments.encoders, arguments.encoder)
    budgets = BUDGETS[1:2] if arguments.quick else BUDGETS
    stores = {}
    # All methods that take seconds, then those that take minutes, and those on many sentences.
    for slow, encoder in product([False] if arguments.quick else [False, True], encoders):
        for path in encoder.searches[:1] if arguments.quick else encoder.searches:
            store = Store(arguments.work / f"figures-{encoder.name}-{path.replace('/', '-')}.json")
            stores[encoder.name, path] = store
            if not arguments.measured:
                data = EncodedData(arguments.data, arguments.work, encoder).halve(path)
                measure_search(data, f"{encoder.name}, {path}", store, budgets, slow)

    cells = [
        {"encoder": encoder, "search": path} | cell
        for (encoder, path), store in stores.items()
        for cell in store.cells()
    ]
    judged = [cell for cell in cells if cell["search"] != MANY_KINDS]
    names = [encoder.name for encoder in encoders]
    summary = {"all": summarize(judged, names)} | {name: summarize(judged, [name]) for name in names}
    summary[MANY_KINDS] = summarize([cell for cell in cells if cell["search"] == MANY_KINDS], names)
    for title, rows in summary.items():
        print_tables(title, rows)
    for cell in cells:
        cell["methods"] = {
            f"{row['family']}, {row['setting'] or 'one setting'}, {row['bytes']} bytes": [
                float(np.mean(row[name])) for name in MEASURES if name in row
            ]
            for row in cell["methods"]
        }
    figures: dict[str, Any] = {"measures": MEASURES, "summary": summary, "cells": cells, "missing": list_missing()}
    figures["packages"] = {
        name: version(name)
        for name in ("faiss-cpu", "rabitqlib", "turbovec", "turboquant-pro", "remex")
        if name.replace("-", "_") not in figures["missing"]
    }
    print("left out, not installed:", figures["missing"])
    rates = arguments.work / "rates.json"
    if not rates.exists():
        first = EncodedData(arguments.data, arguments.work, encoders[0]).halve(SEARCHES[-1])
        rates.write_bytes(orjson.dumps(measure_rates(first, budgets)))
    figures["rates"] = orjson.loads(rates.read_bytes())
    figures = json.loads(json.dumps(figures), parse_float=lambda text: round(float(text), 4))
    arguments.out.mkdir(parents=True, exist_ok=True)
    print("picture:", write_plot(arguments.out, {name: summary[name] for name in names}), file=sys.stderr)
    print("raw figures:", write_report(arguments.out, "codes", figures), file=sys.stderr)


class Store:
    """Figures of one search by one encoder in a file.

    Args:
        path: the file, read if it exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.figures: dict[str, Any] = orjson.loads(path.read_bytes()) if path.exists() else {"methods": {}}

    def lacks(self, key: str) -> bool:
        """Return whether the file has no figures of a method."""
        return key not in self.figures["methods"]

    def add(self, key: str, rows: list[dict[str, Any]]) -> None:
        """Add the figures of a method, and write the file."""
        self.figures["methods"][key] = rows
        self._path.write_bytes(orjson.dumps(self.figures))

    def cells(self) -> Iterator[dict[str, Any]]:
        """Yield an entry for each kind of fit and budget with all its methods."""
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for key, rows in self.figures["methods"].items():
            fit, budget, _ = key.split(", ", 2)
            found.setdefault((fit, budget), []).extend(rows)
        about = {key: value for key, value in self.figures.items() if key != "methods"}
        for (fit, budget), rows in found.items():
            yield {"fit": fit, "budget": int(budget)} | about | {"methods": rows}


def measure_search(data: HalvedSearch, title: str, store: Store, budgets: tuple[int, ...], slow: bool) -> None:
    """Add the figures of a search that its store lacks."""
    scores = data.queries @ data.searched.T
    nearest = rank_best(scores, K)
    store.figures |= {"fitted": len(data.fitted), "searched": len(data.searched), "queries": len(data.queries)}
    store.figures["mean_norm"] = float(np.linalg.norm(data.fitted.mean(axis=0)))
    store.figures["ndcg_of_floats"] = float(compute_ndcg(nearest, data.gains).mean()) if data.gains else 0.0
    for (fit, fit_on_searched), budget in product(FITS.items(), budgets):
        # What takes minutes is measured once.
        if fit_on_searched and slow:
            continue
        for recipe in list_all_recipes(data.fitted.shape[1], budget):
            key = f"{fit}, {budget}, {recipe.name}"
            takes_minutes = recipe.slow or not data.gains
            if takes_minutes == slow and (data.gains or not recipe.slow) and store.lacks(key):
                print_progress(0, f"{title}: {key}")
                store.add(key, measure_recipe(recipe, data, fit_on_searched, budget, nearest))


def list_all_recipes(dimensions: int, budget: int) -> Iterator[Recipe]:
    """Yield our codes, FAISS's methods, and those of the installed packages."""
    yield from list_recipes(dimensions, budget)
    yield from list_package_recipes(dimensions, budget)


def print_tables(title: str, rows: list[dict[str, Any]]) -> None:
    """Print a table for each kind of fit: every family's figures by measure and budget, best recall first."""
    budgets = sorted({row["budget"] for row in rows})
    for fit in dict.fromkeys(row["fit"] for row in rows):
        cells = {(row["family"], row["measure"], row["budget"]): row for row in rows if row["fit"] == fit}
        families = dict.fromkeys(family for family, _, _ in cells)
        lines = [
            [family, *(format_cell(cells.get((family, measure, budget))) for measure in MEASURES for budget in budgets)]
            for family in families
        ]
        print(f"\n**{title}, fitted on the {fit}**\n")
        print(markdown_table(["", *(f"{measure} {budget}" for measure in MEASURES for budget in budgets)], lines))


def format_cell(row: dict[str, Any] | None) -> str:
    """Format a family's mean, and how far ours is ahead of it with its interval."""
    if row is None:
        return ""
    ahead = row.get("ours_ahead")
    value = f"{row['change']:+.2f}" if "change" in row else f"{row['mean']:.1f}"
    return value + (f" ({ahead['mean']:+.2f} ± {ahead['ci95']:.2f})" if ahead else f" ({row['searches']})")


if __name__ == "__main__":
    main()
