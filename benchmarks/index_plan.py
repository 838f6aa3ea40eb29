"""Compares the plan of `lathe advise --recall`, made from a sample, with graphs over all vectors.

    python -m benchmarks.index_plan --vectors vectors.npy --out benchmarks/results

The plan is made from 20,000 of the vectors, and again from all of them, which is the truth.
"""

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.starters import print_progress
from lathe.service.index.graph_trial import measure_graph
from lathe.training.advice.index_plan import QUERIES, Setting, fit_candidates, measure_settings
from lathe.training.advice.request import DEFAULT_ROWS
from lathe.training.reporting.text import format_bytes

BUDGETS = (None, 48, 96)
"""Bytes of the codes whose plans are checked; None is for vectors as they are."""
TARGETS = (0.9, 0.95, 0.99)
"""Recalls at which the fastest planned settings are printed."""


def main() -> None:
    """Plan, measure, print both, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--vectors", type=Path, required=True, help="FILE.npy of distinct vectors, in random order")
    options.add_argument("--k", type=int, default=10)
    arguments = options.parse_args()
    vectors = np.load(arguments.vectors).astype(np.float32)
    base, queries = vectors[:-QUERIES], vectors[-QUERIES:]
    sample = base[:DEFAULT_ROWS]
    candidates = {budget: chain for budget, chain in fit_candidates(sample).items() if budget in BUDGETS}
    planned, measured = (
        measure_settings(candidates, rows, queries, len(base), arguments.k, measure_graph, print_progress)
        for rows in (sample, base)
    )
    by_key = {get_key(setting): setting for setting in measured}
    both = [(setting, by_key[get_key(setting)]) for setting in planned]
    errors = np.array([plan.recall - truth.recall for plan, truth in both])
    times = np.array([plan.microseconds / truth.microseconds for plan, truth in both])
    figures = {
        "rows": len(base),
        "sample": len(sample),
        "recall_error": {
            "mean": errors.mean(),
            "mean_absolute": np.abs(errors).mean(),
            "largest": np.abs(errors).max(),
        },
        "time_ratio": dict(zip(("p10", "median", "p90"), np.quantile(times, (0.1, 0.5, 0.9)).tolist(), strict=True)),
        "settings": [{"planned": asdict(plan), "found": asdict(truth)} for plan, truth in both],
    }
    print(markdown_table(HEADER, [line for target in TARGETS for line in list_lines(both, target)]))
    print(figures["recall_error"], figures["time_ratio"])
    print("raw figures:", write_report(arguments.out, "index-plan", figures), file=sys.stderr)


HEADER = ["recall wanted", "chain", "m", "ef", "rescore", "recall", "memory", "µs", "build s"]


def get_key(setting: Setting) -> tuple[str, int, int, int]:
    """Return the parameters that identify a setting."""
    return setting.chain, setting.m, setting.ef, setting.rescore


def list_lines(both: list[tuple[Setting, Setting]], target: float) -> list[list[str]]:
    """Build a row for each chain and number of links: the fastest setting planned for a recall, and the truth."""
    lines = []
    for group in sorted({(plan.chain, plan.m) for plan, _ in both}):
        reaching = [pair for pair in both if (pair[0].chain, pair[0].m) == group and pair[0].recall >= target]
        if not reaching:
            continue
        plan, truth = min(reaching, key=lambda pair: pair[0].microseconds)
        lines.append(
            [
                str(target),
                plan.chain,
                str(plan.m),
                str(plan.ef),
                str(plan.rescore),
                f"{plan.recall:.3f} / {truth.recall:.3f}",
                f"{format_bytes(plan.memory)} / {format_bytes(truth.memory)}",
                f"{plan.microseconds:.0f} / {truth.microseconds:.0f}",
                f"{plan.build_seconds:.0f} / {truth.build_seconds:.0f}",
            ]
        )
    return lines


if __name__ == "__main__":
    main()
