"""Which measure without labels chooses the query weighting λ of codes that search tasks want.

    python -m research.codes.weightings --data FOLDER --encoders FOLDER --work FOLDER --out research/results

On the documents of every search task, split-half retrieval and recall of neighbours choose a λ as a fit would, from
documents held out of it. The judge is the task's nDCG@10 through codes of each λ.
"""

import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.codes.data import TASKS, EncodedData, list_document_texts, list_encoders, make_data_parser
from benchmarks.codes.measure import K, compute_ndcg, list_gains
from benchmarks.codes.methods import Vectors, fit_lathe_codes
from benchmarks.report import markdown_table, write_report
from benchmarks.starters import print_progress
from lathe.training.comparison import choose_cheapest
from lathe.training.fitting.code_search import MAX_TEXTS
from lathe.training.measures import TextHalves, cut_in_two, rank_halves
from lathe.transforms import Chain, parse_steps
from research.paper_findings.statistics import rank_correlation

BUDGETS = (24, 48, 96)
WEIGHTINGS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Values of λ that are tried; the first stays unless another is better beyond its interval."""
HELD_OUT_SHARE = 0.3
"""Share of a task's documents that judge the weightings; the codes are fitted on the others."""


def main() -> None:
    """Measure, print what each choice costs, write the raw figures."""
    options = make_data_parser(__doc__)
    arguments = options.parse_args()
    torch.set_num_threads(1)
    cells = [
        cell
        for encoder in list_encoders(arguments.encoders, arguments.encoder)
        if encoder.with_tasks
        for path in (TASKS[:1] if arguments.quick else TASKS)
        for cell in measure_choices(EncodedData(arguments.data, arguments.work, encoder), path)
    ]
    figures = {"cells": cells, "summary": [summarize(cells, budget) for budget in BUDGETS]}
    header = ["bytes", *next(iter(figures["summary"]))["loss"], "ρ of split-half", "ρ of recall"]
    lines = [
        [
            str(one["budget"]),
            *(f"{loss:+.2f}" for loss in one["loss"].values()),
            f"{one['split_half_rho']:.2f}",
            f"{one['recall_rho']:.2f}",
        ]
        for one in figures["summary"]
    ]
    print(markdown_table(header, lines))
    print("raw figures:", write_report(arguments.out, "codes-weightings", figures), file=sys.stderr)


def measure_choices(data: EncodedData, path: str) -> list[dict[str, Any]]:
    """Return, for each budget, what both measures and the task say of each λ on the documents of a task."""
    contents, documents, queries = data.task(path)
    texts = list_document_texts(contents)
    order = np.random.default_rng(0).permutation(len(texts))
    held_out = order[: int(HELD_OUT_SHARE * len(texts))]
    fitted = np.sort(order[len(held_out) :])
    cuts = [cut for i in held_out if (cut := cut_in_two(texts[i])) is not None][:MAX_TEXTS]
    first, second = (
        data.encoded(f"{path} halves {side}", [cut[side] for cut in cuts], data.encoder.document) for side in (0, 1)
    )
    gains = list_gains(contents)
    full = compute_ndcg(np.argsort(-(queries @ documents.T), axis=1)[:, :K], gains)
    found = []
    for budget in BUDGETS:
        print_progress(0, f"{data.encoder.name}, {path}: {budget} bytes")
        chains = [Chain(parse_steps(f"codes:{budget},weighting={w}")).fit(documents[fitted]) for w in WEIGHTINGS]
        ranks = [rank_halves(chain, TextHalves(first, second), documents[held_out]) for chain in chains]
        recalls = [_measure_recall(documents[fitted], documents[held_out], budget, w) for w in WEIGHTINGS]
        losses = []
        for weighting in WEIGHTINGS:
            method = fit_lathe_codes(documents, documents, budget, weighting=weighting)
            losses.append(100 * float((compute_ndcg(method.search(queries, K), gains) - full).mean()))
        found.append(
            {
                "encoder": data.encoder.name,
                "task": path,
                "budget": budget,
                "texts": len(cuts),
                "weightings": list(WEIGHTINGS),
                "loss": losses,
                "retrieval": [100 * float(one.mean()) for one in ranks],
                "recall_at_10": [float(recall.mean()) for recall in recalls],
                "by_split_half": choose_cheapest(ranks),
                "by_recall": choose_cheapest(recalls),
            }
        )
    return found


def _measure_recall(fitted: Vectors, held_out: Vectors, budget: int, weighting: float) -> NDArray[np.float64]:
    """Return the recall@10 of each held-out row among the codes of the fitted rows, `(n,)`."""
    wanted = np.argsort(-(held_out @ fitted.T), axis=1)[:, :K]
    ids = fit_lathe_codes(fitted, fitted, budget, "codes", weighting=weighting).search(held_out, K)
    return np.array([np.isin(w, i).mean() for w, i in zip(wanted, ids, strict=True)])


def summarize(cells: list[dict[str, Any]], budget: int) -> dict[str, Any]:
    """Average, over the tasks at a budget, the loss of each choice and the rank correlations of measures with tasks."""
    some = [cell for cell in cells if cell["budget"] == budget]
    losses = np.array([cell["loss"] for cell in some])

    def correlate(name: str) -> float:
        """Return the mean Spearman correlation over the weightings of a measure with the task's score."""
        measures = np.array([cell[name] for cell in some])
        return float(np.nanmean([rank_correlation(a[None], b[None])[0] for a, b in zip(measures, losses, strict=True)]))

    def take(name: str) -> float:
        """Return the mean loss of the weightings that a measure chose."""
        return float(np.mean([cell["loss"][cell[name]] for cell in some]))

    fixed = {f"λ = {weighting}": float(losses[:, i].mean()) for i, weighting in enumerate(WEIGHTINGS)}
    chosen = {"by split-half": take("by_split_half"), "by recall": take("by_recall")}
    return {
        "budget": budget,
        "tasks": len(some),
        "loss": fixed | chosen | {"best in hindsight": float(losses.max(axis=1).mean())},
        "changed_by_split_half": sum(cell["by_split_half"] != 0 for cell in some),
        "split_half_rho": correlate("retrieval"),
        "recall_rho": correlate("recall_at_10"),
    }


if __name__ == "__main__":
    main()
