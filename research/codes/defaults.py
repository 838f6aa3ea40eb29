"""Which codes lose least on search tasks, where they are fitted on other documents than those that are searched.

    python -m research.codes.defaults --data FOLDER --encoders FOLDER --work FOLDER --out research/results

Every corpus is cut into two halves. Codes are fitted on each half, and search the other one with the queries that have
a relevant document there. The default is chosen by the tasks in `TUNING`; those in `PROOF` confirm it. Each result is
stored in the work folder, so that a run that was stopped goes on where it was.
"""

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.codes.data import EncodedData, Vectors, list_encoders
from benchmarks.codes.measure import average_paired, compute_ndcg
from benchmarks.report import markdown_table, write_report
from benchmarks.starters import print_progress
from lathe.training.fitting.code_search import MIN_CODEBOOK_ROWS
from lathe.transforms import ProductCoding, TransformCoding
from lathe.transforms.codes import CENTROIDS
from research.learned.data import EncodedTask, Gains, encode_task, measure_once, read_task, task_parser
from research.learned.measure import find_nearest

TUNING = (
    "finance/fiqa_qa",
    "code/spider_sql",
    "code/mbpp",
    "general/cranfield",
    "general/cacm",
    "general/cisi",
)
"""Tasks by which the default is chosen."""

PROOF = (
    "code/cosqa",
    "code/nl2bash",
    "finance/tatqa",
    "general/trec_qa",
    "general/npl",
    "general/covid_faq",
    "general/dbpedia_mini",
    "general/msmarco_mini",
)
"""Tasks that confirm the choice, and had no part in it."""

BUDGETS = (24, 48, 96)
WEIGHTINGS: Mapping[str, tuple[float, ...]] = {"codes": (0.0, 0.25, 0.5, 0.75, 1.0), "product_codes": (0.0, 0.25, 0.5)}
"""Values of λ that are compared, by kind. Codebooks with larger ones were not measured, because they train longest."""

REFERENCE = ("codes", 0.5)
"""Kind and λ that the others are compared with: the default until this was measured."""

FEW_TEST_QUERIES = 500
"""Number of test queries below which a task's training queries search too. No code learns from queries here."""

K = 10
"""Number of documents that count."""

Configuration = tuple[str, float]
"""Kind of the codes and λ."""


def main() -> None:
    """Measure, print the tables, write the raw figures."""
    arguments = task_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    tasks = TUNING[-1:] if arguments.quick else arguments.task or (*TUNING, *PROOF)
    cells = []
    for encoder in list_encoders(arguments.encoders, arguments.encoder or ["MiniLM", "e5-small", "WordLlama"]):
        data = EncodedData(arguments.data, arguments.work / "vectors", encoder)
        for task in tasks:
            path = arguments.work / f"codes-defaults-{encoder.name}-{task.replace('/', '-')}.json"
            if found := measure_once(path, partial(measure_task, data, task), arguments.measured):
                cells.append({"encoder": encoder.name, "task": task} | found)
    figures = {"tuning": TUNING, "proof": PROOF, "reference": REFERENCE, "cells": cells}
    print_tables(cells)
    print("raw figures:", write_report(arguments.out, "codes-defaults", figures), file=sys.stderr)


def measure_task(data: EncodedData, name: str) -> dict[str, Any]:
    """Encode a task, and return what `measure_halves` finds."""
    task = encode_task(data, name, train=len(read_task(data.data, name).test) < FEW_TEST_QUERIES)
    print_progress(0, f"{data.encoder.name}, {name}")
    return measure_halves(task)


def measure_halves(task: EncodedTask) -> dict[str, Any]:
    """Fit codes on each half of a task's documents, and search the other half by them.

    Returns:
        `rows` (documents of each half), `queries`, `full` (nDCG@10 × 100 by the full vectors), and `codes`: for each
        kind, λ and number of bytes, the change of nDCG@10 in points (`loss`), the difference to `REFERENCE` (`ahead`),
        and for `product_codes` that to `codes` with the same λ (`ahead_of_codes`). Codes with the λ of `REFERENCE` also
        have `memorized`, the change where they are fitted on the half that they search, `memorized_gain`, how much less
        that loses, and recall@10 of the full vectors' neighbours both ways. Averages are over queries. A query that
        searches both halves counts once.
    """
    # Without training queries, their array has no dimensions to be joined by.
    queries = np.concatenate([task.test, task.train]) if len(task.train) else task.test
    gains = [*task.task.test_gains, *task.task.train_gains]
    order = np.random.default_rng(0).permutation(len(task.documents))
    halves = [np.sort(half) for half in np.array_split(order, 2)]
    scores = HalfScores(len(queries))
    for fitted, searched in (halves, halves[::-1]):
        places = {int(row): place for place, row in enumerate(searched)}
        inside = [{places[row]: grade for row, grade in one.items() if row in places} for one in gains]
        asking = np.array([n for n, one in enumerate(inside) if any(grade > 0 for grade in one.values())])
        measure_half(task.documents[fitted], task.documents[searched], queries[asking], inside, asking, scores)
    return {"rows": [len(half) for half in halves]} | scores.summarize()


class HalfScores:
    """Scores by query, added up over the halves that the query searches.

    Args:
        queries: number of queries.
    """

    def __init__(self, queries: int) -> None:
        self._queries = queries
        self._searches = np.zeros(queries)
        self._sums: dict[tuple[Any, ...], NDArray[np.float64]] = {}

    def count(self, asking: NDArray[np.int64]) -> None:
        """Count one more search of these queries."""
        self._searches[asking] += 1

    def add(self, key: tuple[Any, ...], asking: NDArray[np.int64], scores: NDArray[np.float64]) -> None:
        """Add the scores of these queries to those under a key."""
        self._sums.setdefault(key, np.zeros(self._queries))[asking] += scores

    def mean(self, *key: Any) -> NDArray[np.float64]:
        """Return the scores under a key of each query that searched, × 100, averaged over its searches."""
        searched = self._searches > 0
        return np.asarray(100 * self._sums[key][searched] / self._searches[searched])

    def summarize(self) -> dict[str, Any]:
        """Return the averages over queries, as `measure_halves` describes them."""
        full = self.mean("full")
        codes = []
        for key in self._sums:
            if key[0] != "other half":
                continue
            _, kind, weighting, budget = key
            loss = self.mean(*key) - full
            row = {"kind": kind, "weighting": weighting, "bytes": budget, "loss": average_paired(loss)}
            row["ahead"] = average_paired(loss + full - self.mean("other half", *REFERENCE, budget))
            if kind != REFERENCE[0]:
                row["ahead_of_codes"] = average_paired(
                    loss + full - self.mean("other half", REFERENCE[0], weighting, budget)
                )
            if ("same half", kind, weighting, budget) in self._sums:
                same = self.mean("same half", kind, weighting, budget)
                row["memorized"] = average_paired(same - full)
                row["memorized_gain"] = average_paired(same - loss - full)
                row["recall_at_10"] = {
                    half: float(self.mean(f"recall of {half}", kind, weighting, budget).mean()) / 100
                    for half in ("same half", "other half")
                }
            codes.append(row)
        return {"queries": len(full), "full": float(full.mean()), "codes": codes}


def measure_half(
    fitted: Vectors, searched: Vectors, queries: Vectors, gains: Gains, asking: NDArray[np.int64], scores: HalfScores
) -> None:
    """Add the scores of all codes that are fitted on one half and search the other.

    Args:
        fitted: vectors of the half to fit on.
        searched: vectors of the half to search.
        queries: vectors of the queries with a relevant document there, `(a, d)`.
        gains: relevant documents of all queries, by row of `searched`.
        asking: numbers of those queries, `(a,)`.
        scores: where the scores are added; changed.
    """
    judged = [gains[n] for n in asking]
    neighbours = find_nearest(queries, searched)
    scores.count(asking)
    scores.add(("full",), asking, compute_ndcg(neighbours, judged))
    for kind, weighting, budget in list_codes(len(fitted), len(searched)):
        for half, rows in (("other half", fitted), ("same half", searched)):
            if half == "same half" and weighting != REFERENCE[1]:
                continue
            ids = search_codes(kind, weighting, budget, rows, searched, queries)
            scores.add((half, kind, weighting, budget), asking, compute_ndcg(ids, judged))
            if weighting == REFERENCE[1]:
                recall = [np.isin(near, found).mean() for near, found in zip(neighbours, ids, strict=True)]
                scores.add((f"recall of {half}", kind, weighting, budget), asking, np.array(recall))


def list_codes(*rows: int) -> Iterator[tuple[str, float, int]]:
    """Yield kind, λ and bytes of all codes that can be fitted on halves of so many rows."""
    for kind, weightings in WEIGHTINGS.items():
        if kind == "codes" or min(rows) >= CENTROIDS:
            yield from ((kind, weighting, budget) for weighting, budget in product(weightings, BUDGETS))


def search_codes(
    kind: str, weighting: float, budget: int, fitted: Vectors, searched: Vectors, queries: Vectors
) -> NDArray[np.int64]:
    """Return the rows of the `K` best codes of each query, best first, `(a, K)`."""
    step = (TransformCoding if kind == "codes" else ProductCoding)(budget, weighting).fit(fitted)
    found = torch.from_numpy(step.score(queries, step.transform(searched))).topk(K, dim=1).indices
    return np.asarray(found.numpy(), np.int64)


def average_over_tasks(
    cells: list[dict[str, Any]], configuration: Configuration, budget: int, measure: str
) -> dict[str, float] | None:
    """Average a measure of codes over cells of tasks and encoders.

    The interval is that of the mean of independent tasks, for these tasks: queries are a sample, tasks are not.
    Encoders share a task's queries, so they are averaged before, and their intervals count as if fully dependent.

    Returns:
        `mean`, `ci95` and the number of `tasks`; None if no cell has such codes.
    """
    by_task: dict[str, list[dict[str, float]]] = {}
    for cell in cells:
        for row in cell["codes"]:
            if (row["kind"], row["weighting"], row["bytes"]) == (*configuration, budget) and measure in row:
                by_task.setdefault(cell["task"], []).append(row[measure])
    if not by_task:
        return None
    means = [np.mean([one["mean"] for one in found]) for found in by_task.values()]
    halves = [np.mean([one["ci95"] for one in found]) for found in by_task.values()]
    half = float(np.linalg.norm(halves)) / len(by_task)
    return {"mean": float(np.mean(means)), "ci95": half, "tasks": len(by_task)}


def print_tables(cells: list[dict[str, Any]]) -> None:
    """Print what each kind and λ loses, by group of tasks and by encoder, and what codes memorize."""
    groups = {
        "tuning": [cell for cell in cells if cell["task"] in TUNING],
        "proof": [cell for cell in cells if cell["task"] in PROOF],
        f"{MIN_CODEBOOK_ROWS:,} rows or more": [cell for cell in cells if min(cell["rows"]) >= MIN_CODEBOOK_ROWS],
    }
    for name, group in groups.items():
        for measure in ("loss", "ahead", "ahead_of_codes"):
            print(f"\n## {name}: {measure}\n\n{format_losses(group, measure)}")
    print(f"\n## memorized\n\n{format_memorized(cells)}")


def format_losses(cells: list[dict[str, Any]], measure: str) -> str:
    """Return a table of a measure's average over tasks: a row for each kind and λ, columns for encoders and bytes."""
    by_encoder = {"all": cells}
    for cell in cells:
        by_encoder.setdefault(cell["encoder"], []).append(cell)
    rows = []
    for configuration in ((kind, weighting) for kind, weightings in WEIGHTINGS.items() for weighting in weightings):
        averages = [
            average_over_tasks(some, configuration, budget, measure)
            for some in by_encoder.values()
            for budget in BUDGETS
        ]
        rows.append([f"{configuration[0]}, λ = {configuration[1]:g}", *map(format_mean, averages)])
    return markdown_table(["", *(f"{name}, {budget}" for name in by_encoder for budget in BUDGETS)], rows)


def format_memorized(cells: list[dict[str, Any]]) -> str:
    """Return a table of what codes gain where they are fitted on what they search, a row for kind, bytes and task."""
    rows = []
    for kind, budget, task in product(WEIGHTINGS, BUDGETS, (*TUNING, *PROOF)):
        of_task = [cell for cell in cells if cell["task"] == task]
        gain = average_over_tasks(of_task, (kind, REFERENCE[1]), budget, "memorized_gain")
        if gain is None:
            continue
        recalls = [
            row["recall_at_10"]
            for cell in of_task
            for row in cell["codes"]
            if (row["kind"], row["weighting"], row["bytes"]) == (kind, REFERENCE[1], budget)
        ]
        means = [f"{np.mean([recall[half] for recall in recalls]):.3f}" for half in ("other half", "same half")]
        rows.append([kind, str(budget), task, str(of_task[0]["rows"][0]), *means, format_mean(gain)])
    header = ["kind", "bytes", "task", "rows", "recall, other half", "recall, same half", "nDCG@10 gained"]
    return markdown_table(header, rows)


def format_mean(average: dict[str, float] | None) -> str:
    """Format a mean with its interval, and None as an empty string."""
    return "" if average is None else f"{average['mean']:+.2f} ± {average['ci95']:.2f}"


if __name__ == "__main__":
    main()
