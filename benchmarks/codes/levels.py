"""Measures what the adjustment of levels changes: recall and cosines of codes with and without it, rates of encoding.

Run it as `python -m benchmarks.codes.levels --vectors SET.ENCODER.npy …`: each file holds unit vectors of a data set by
an encoder. Codes are fitted on one half of the rows. In the other half, 300 rows search the others with floats, and the
nearest are those by the cosine of the vectors. Differences are paired by query.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.codes.methods import Vectors, rank_best
from benchmarks.report import markdown_table, parser, write_report
from lathe.transforms import ProductCoding, TransformCoding

QUERIES, K = 300, 10
BUDGETS = (24, 48, 96)
TIMED_ROWS, TIMES = 2048, 5
"""Rows that are encoded, and repetitions, with and without alternating, of which the fastest counts."""


def measure_file(path: Path, kinds: list[str], weighting: float, budgets: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return, for each kind of codes and budget, the shares of the nearest that each query finds, the mean cosines and
    the vectors encoded a second.
    """
    vectors = np.load(path).astype(np.float32)
    vectors = vectors[np.random.default_rng(0).permutation(len(vectors))]
    fitted, rest = np.array_split(vectors, 2)
    rows, queries = rest[:-QUERIES], rest[-QUERIES:]
    nearest = rank_best(queries @ rows.T, K)
    figures = []
    for kind in (kind for kind in (TransformCoding, ProductCoding) if kind.kind in kinds):
        for budget in budgets:
            step = kind(budget, weighting).fit(fitted)
            recalls, cosines = {}, {}
            for name, step.adjust_levels in (("rounded", False), ("adjusted", True)):
                codes = step.transform(rows)
                found = rank_best(step.score(queries, codes), K)
                recalls[name] = (found[:, :, None] == nearest[:, None]).any(axis=1).mean(axis=1).round(3).tolist()
                cosines[name] = float((step.inverse_transform(codes) * rows).sum(axis=1).mean())
            figures.append(
                {"kind": step.kind, "budget": budget, "dimensions": rows.shape[1], "recall": recalls}
                | {"cosine": cosines, "per_second": measure_rates(step, rows[:TIMED_ROWS])}
            )
    return figures


def measure_rates(step: TransformCoding, rows: Vectors) -> dict[str, float]:
    """Return the vectors that are encoded in a second of the processor, with and without the adjustment of levels."""
    seconds: dict[str, list[float]] = {"rounded": [], "adjusted": []}
    for _ in range(TIMES):
        for name, step.adjust_levels in (("rounded", False), ("adjusted", True)):
            begun = time.thread_time()
            step.transform(rows)
            seconds[name].append(time.thread_time() - begun)
    return {name: round(len(rows) / min(durations)) for name, durations in seconds.items()}


def average_differences(differences: list[NDArray[np.float64]]) -> tuple[float, float]:
    """Return the mean over files of the mean difference of queries, with the half-width of its 95 % interval.

    The files stand for themselves. The interval is that of their queries.
    """
    mean = float(np.mean([one.mean() for one in differences]))
    return mean, 1.96 * float(np.sqrt(sum(one.var(ddof=1) / len(one) for one in differences))) / len(differences)


def summarize(by_file: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return means over files, of all and of each encoder, for each kind of codes and budget."""
    encoders = sorted({name.rsplit(".", 1)[1] for name in by_file})
    summary = []
    for group in ("all", *encoders):
        files = [rows for name, rows in by_file.items() if group in ("all", name.rsplit(".", 1)[1])]
        for cells in zip(*files, strict=True):
            pairs = [100 * np.array([cell["recall"]["rounded"], cell["recall"]["adjusted"]]) for cell in cells]
            mean, reach = average_differences([adjusted - rounded for rounded, adjusted in pairs])
            summary.append(
                {key: cells[0][key] for key in ("kind", "budget")}
                | {"group": group, "files": len(cells), "difference": mean, "ci95": reach}
                | {"rounded": float(np.mean([pair[0].mean() for pair in pairs]))}
                | {"cosine_gain": float(np.mean([c["cosine"]["adjusted"] - c["cosine"]["rounded"] for c in cells]))}
            )
    return summary


def main() -> None:
    """Measure the files, print the table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--vectors", type=Path, nargs="+", required=True, help="files SET.ENCODER.npy")
    options.add_argument("--kind", action="append", help="codes or product_codes; both by default")
    options.add_argument("--weighting", type=float, default=0.0, help="λ of the codes; 0 by default")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    budgets = BUDGETS[:1] if arguments.quick else BUDGETS
    kinds, by_file = arguments.kind or [TransformCoding.kind, ProductCoding.kind], {}
    for path in sorted(arguments.vectors):
        by_file[path.stem] = measure_file(path, kinds, arguments.weighting, budgets)
        print(path.stem, *(cell["per_second"] for cell in by_file[path.stem]), flush=True)
    summary = summarize(by_file)
    lines = [
        [row["group"], row["kind"], str(row["budget"]), f"{row['rounded']:.1f}"]
        + [f"{row['difference']:+.2f} ± {row['ci95']:.2f}", f"{row['cosine_gain']:+.5f}"]
        for row in summary
    ]
    print(markdown_table(["files", "codes", "bytes", "rounded", "adjusted − rounded", "cosine"], lines))
    name = "codes-levels-weighted" if arguments.weighting else "codes-levels"
    print("raw figures:", write_report(arguments.out, name, {"summary": summary, "files": by_file}))


if __name__ == "__main__":
    main()
