"""Compares codes with FAISS at equal bytes: recall of neighbours, search tasks, rates.

    python -m benchmarks.codes --data FOLDER --encoders FOLDER --work FOLDER --out benchmarks/results

Every method is trained on the same rows and searches the same others; differences are paired by query.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import faiss
import numpy as np
import orjson
import torch

from benchmarks.codes.data import CORPORA, MANY_KINDS, TASKS, EncodedData, list_encoders, make_data_parser
from benchmarks.codes.measure import OURS, measure_neighbours, measure_task
from benchmarks.codes.methods import name_family
from benchmarks.codes.plot import write_plot
from benchmarks.codes.rates import measure_rates
from benchmarks.held_out import read_held_out
from benchmarks.report import markdown_table, write_report

BUDGETS = [24, 48, 96, 192]
TASK_BUDGETS = [24, 48, 96]


def main() -> None:
    """Measure, print the tables, and write the raw figures."""
    options = make_data_parser(__doc__)
    options.add_argument("--task", action="append", default=[], metavar="SUITE/NAME", help="only these search tasks")
    options.add_argument("--corpus", action="append", default=[], metavar="NAME", help="only these corpora")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--resume", action="store_true", help="measure only what the raw figures in --out lack")
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    faiss.omp_set_num_threads(arguments.threads)
    budgets = [48] if arguments.quick else BUDGETS
    written = arguments.out / "codes.json"
    earlier = orjson.loads(written.read_bytes()) if arguments.resume else {}
    known = earlier.get("figures", {"encoders": {}, "rates": None})
    measured: dict[str, Any] = {}
    encoders = list_encoders(arguments.encoders, arguments.encoder)
    for encoder in encoders:
        # Stored after every step, so that a run that was stopped goes on where it was.
        path = arguments.work / f"{encoder.name}-{'-'.join(map(str, budgets))}-{arguments.seeds}.json"
        encoder_figures = orjson.loads(path.read_bytes()) if path.exists() else known["encoders"].get(encoder.name, {})
        tasks = () if arguments.quick else tuple(arguments.task) or TASKS
        data = EncodedData(arguments.data, arguments.work, encoder)
        corpora = encoder.corpora or (*CORPORA, *([] if arguments.quick else [MANY_KINDS]))
        chosen = [name for name in corpora if not arguments.corpus or name in arguments.corpus]
        for _ in measure_encoder(data, chosen, budgets, arguments.seeds, tasks, encoder_figures):
            arguments.work.mkdir(parents=True, exist_ok=True)
            path.write_bytes(orjson.dumps(encoder_figures))
        measured[encoder.name] = encoder_figures
        print_encoder(encoder.name, encoder_figures)
    figures: dict[str, Any] = {"seeds": arguments.seeds, "held_out": sorted(read_held_out())}
    if earlier:
        run = {key: earlier[key] for key in ("command", "machine", "date")}
        figures["earlier_runs"] = [*known.get("earlier_runs", []), run]
    figures["encoders"] = known["encoders"] | measured
    figures["averages"] = average_encoders(figures["encoders"])
    print_averages(figures["averages"])
    figures["rates"] = known["rates"]
    if figures["rates"] is None:
        first = EncodedData(arguments.data, arguments.work, encoders[0])
        figures["rates"] = measure_rates(first.corpus(next(iter(CORPORA))), budgets)
    for row in figures["rates"]:
        print(row["budget"], {name: f"{rate:,.0f}" for name, rate in row["per_second"].items()})
    arguments.out.mkdir(parents=True, exist_ok=True)
    print("picture:", write_plot(arguments.out, list_panels(figures["encoders"], next(iter(CORPORA)))), file=sys.stderr)
    print("raw figures:", write_report(arguments.out, "codes", figures), file=sys.stderr)


def measure_encoder(
    data: EncodedData,
    corpora: list[str],
    budgets: list[int],
    seeds: int,
    tasks: tuple[str, ...],
    found: dict[str, Any],
) -> Iterator[None]:
    """Add the figures of an encoder that `found` lacks: recall by corpus, and losses by task.

    Args:
        data: encoded texts.
        corpora: names of the corpora.
        budgets: bytes of a vector.
        seeds: number of seeds.
        tasks: paths of the search tasks.
        found: figures of an earlier run; changed.

    Yields:
        None, after each step, so that the figures can be stored.
    """
    for corpus in corpora:
        vectors = data.corpus(corpus)
        corpus_figures = found.setdefault("neighbours", {}).setdefault(corpus, {"methods": []})
        corpus_figures["texts"] = len(vectors)
        corpus_figures["mean_norm"] = float(torch.from_numpy(vectors).mean(0).norm())
        for methods in measure_neighbours(
            vectors, budgets, 1 if corpus == MANY_KINDS else seeds, corpus_figures["methods"]
        ):
            corpus_figures["methods"] = methods
            yield
    losses = found.setdefault("tasks", {})
    for path in tasks if data.encoder.with_tasks else ():
        if path not in losses:
            losses[path] = measure_task(data, path, TASK_BUDGETS)
            yield


def print_encoder(name: str, found: dict[str, Any]) -> None:
    """Print an encoder's figures as tables.

    They are the recall of the best member of each family, and the losses on tasks.
    """
    for corpus, corpus_figures in found["neighbours"].items():
        rows = list(select_best_of_families(corpus_figures["methods"]))
        print(f"\n**{name}, {corpus}** ({corpus_figures['texts']:,} texts, ‖μ‖ {corpus_figures['mean_norm']:.2f})\n")
        print(format_budget_table(rows, "family", format_cell))
    for path, task in found["tasks"].items():
        print(f"\n**{name}, {path}**: {task['documents']:,} documents, nDCG@10 {task['full']:.1f}\n")
        lines = [
            [str(row["budget"]), row["method"], f"{row['loss']['mean']:+.2f} ± {row['loss']['ci95']:.2f}"]
            for row in task["methods"]
        ]
        print(markdown_table(["bytes", "method", "nDCG@10 − full"], lines))


def average_encoders(encoders: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Average the recall of each family over corpora, and the loss of each method over tasks, by budget.

    The larger corpus does not count, because not all encoders and methods are measured on it.
    """
    corpora, tasks = defaultdict(list), defaultdict(list)
    for encoder_figures in encoders.values():
        for corpus, corpus_figures in encoder_figures["neighbours"].items():
            if corpus == MANY_KINDS:
                continue
            for row in select_best_of_families(corpus_figures["methods"]):
                corpora[row["family"], row["budget"]].append((row["recall_at_10"], row["recall_at_10_rescored_4x"]))
        for task in encoder_figures["tasks"].values():
            for row in task["methods"]:
                tasks[row["method"], row["budget"]].append(row["loss"]["mean"])
    return {
        "neighbours": [
            {"family": name, "budget": budget, "corpora": len(encoder_figures)}
            | dict(
                zip(
                    ("recall_at_10", "recall_at_10_rescored_4x"), np.mean(encoder_figures, axis=0).tolist(), strict=True
                )
            )
            for (name, budget), encoder_figures in corpora.items()
        ],
        "tasks": [
            {"method": name, "budget": budget, "tasks": len(encoder_figures), "loss": float(np.mean(encoder_figures))}
            for (name, budget), encoder_figures in tasks.items()
        ],
    }


def print_averages(averages: dict[str, list[dict[str, Any]]]) -> None:
    """Print the averages as two tables, with a column for each budget."""
    for title, rows, name, cell_of in (
        ("recall", averages["neighbours"], "family", "{recall_at_10:.3f} / {recall_at_10_rescored_4x:.3f} ({corpora})"),
        ("nDCG@10 − full", averages["tasks"], "method", "{loss:+.2f} ({tasks})"),
    ):
        print(f"\n**Average, {title}** (number of corpora or tasks)\n")
        print(format_budget_table(rows, name, cell_of.format_map))


def format_budget_table(rows: list[dict[str, Any]], name: str, format_cell: Callable[[dict[str, Any]], str]) -> str:
    """Format a Markdown table with a line for each value of `name` and a column for each budget.

    Args:
        rows: rows with the keys `budget` and `name`.
        name: key whose values name the lines.
        format_cell: formats a row as a cell; missing cells are empty.
    """
    budgets = sorted({row["budget"] for row in rows})
    cells = {(row[name], row["budget"]): format_cell(row) for row in rows}
    lines = [
        [value, *(cells.get((value, budget), "") for budget in budgets)]
        for value in dict.fromkeys(row[name] for row in rows)
    ]
    return markdown_table(["", *(f"{budget} bytes" for budget in budgets)], lines)


def select_best_of_families(methods: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the method of each family with the highest recall at each budget.

    Rivals thus get the number of bits that suits them on the test itself.
    """
    best: dict[tuple[int, str], dict[str, Any]] = {}
    for row in methods:
        key = (row["budget"], name_family(row["method"]))
        if key not in best or row["recall_at_10"] > best[key]["recall_at_10"]:
            best[key] = row | {"family": key[1]}
    yield from best.values()


def list_panels(encoders: dict[str, Any], corpus: str) -> dict[str, list[dict[str, Any]]]:
    """Return the best methods on a corpus by encoder, under titles that name the norm of the mean vector."""
    neighbours = {name: encoder["neighbours"][corpus] for name, encoder in encoders.items()}
    return {
        f"{name}, ‖μ‖ {figures['mean_norm']:.2f}": list(select_best_of_families(figures["methods"]))
        for name, figures in neighbours.items()
    }


def format_cell(row: dict[str, Any]) -> str:
    """Format the recall of a method alone and rescored, and how far ours is ahead of it with its interval."""
    ahead = "" if row["method"] == OURS else f" ({row['ours_ahead']['mean']:+.3f} ± {row['ours_ahead']['ci95']:.3f})"
    return f"{row['recall_at_10']:.3f} / {row['recall_at_10_rescored_4x']:.3f}{ahead}"


if __name__ == "__main__":
    main()
