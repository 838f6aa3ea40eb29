"""Compares what `lathe advise --recall` expects of an index, from a sample, with graphs over all vectors.

    python -m benchmarks.index_plan --vectors vectors.npy --out benchmarks/results

The plan sees 20,000 of the vectors; then it is given all of them, and what it measures on them is the truth.
"""

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.starters import show
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
    given = options.parse_args()
    vectors = np.load(given.vectors).astype(np.float32)
    base, queries = vectors[:-QUERIES], vectors[-QUERIES:]
    sample = base[:DEFAULT_ROWS]
    candidates = {budget: chain for budget, chain in fit_candidates(sample).items() if budget in BUDGETS}
    planned, measured = (
        measure_settings(candidates, rows, queries, len(base), given.k, measure_graph, show) for rows in (sample, base)
    )
    found = {key(one): one for one in measured}
    both = [(one, found[key(one)]) for one in planned]
    errors = np.array([one.recall - other.recall for one, other in both])
    times = np.array([one.microseconds / other.microseconds for one, other in both])
    figures = {
        "rows": len(base),
        "sample": len(sample),
        "recall_error": {
            "mean": errors.mean(),
            "mean_absolute": np.abs(errors).mean(),
            "largest": np.abs(errors).max(),
        },
        "time_ratio": dict(zip(("p10", "median", "p90"), np.quantile(times, (0.1, 0.5, 0.9)).tolist(), strict=True)),
        "settings": [{"planned": asdict(one), "found": asdict(other)} for one, other in both],
    }
    print(markdown_table(HEADER, [line for target in TARGETS for line in list_lines(both, target)]))
    print(figures["recall_error"], figures["time_ratio"])
    print("raw figures:", write_report(given.out, "index-plan", figures), file=sys.stderr)


HEADER = ["recall wanted", "chain", "m", "ef", "rescore", "recall", "memory", "µs", "build s"]


def key(setting: Setting) -> tuple[str, int, int, int]:
    """Return what identifies a setting."""
    return setting.chain, setting.m, setting.ef, setting.rescore


def list_lines(both: list[tuple[Setting, Setting]], target: float) -> list[list[str]]:
    """Return a line for each chain and number of links: the fastest setting planned for a recall, and the truth."""
    lines = []
    for group in sorted({(one.chain, one.m) for one, _ in both}):
        reaching = [pair for pair in both if (pair[0].chain, pair[0].m) == group and pair[0].recall >= target]
        if not reaching:
            continue
        one, other = min(reaching, key=lambda pair: pair[0].microseconds)
        lines.append(
            [
                str(target),
                one.chain,
                str(one.m),
                str(one.ef),
                str(one.rescore),
                f"{one.recall:.3f} / {other.recall:.3f}",
                f"{format_bytes(one.memory)} / {format_bytes(other.memory)}",
                f"{one.microseconds:.0f} / {other.microseconds:.0f}",
                f"{one.build_seconds:.0f} / {other.build_seconds:.0f}",
            ]
        )
    return lines


if __name__ == "__main__":
    main()
