"""Measures what signs of vectors find: as they are, debiased by R2, and rotated by aligned ITQ.

Run it as `python -m benchmarks.signs --vectors SET.ENCODER.npy …`: each file holds unit vectors of a data set by an
encoder. A chain is fitted on one half of the rows. In the other half, 300 rows search the others by Hamming distance,
and the nearest are those by the cosine of the vectors as they are.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import markdown_table, parser, write_report
from lathe.training.comparison import Interval, mean_interval
from lathe.transforms import Chain, parse_steps

QUERIES, K, RANKED = 300, 10, 40
STEPS = {"as they are": "normalize", "debiased (R2)": "r2", "aligned ITQ": "itq:aligned=true"}

Vectors = NDArray[np.float32]


def find(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the positions `(q, count)` of the highest scores of each query."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def measure_file(path: Path) -> dict[str, dict[str, list[float]]]:
    """Return, for each way of `STEPS`, the shares of the nearest rows that each query finds among 10 and 40 rows."""
    vectors = np.load(path).astype(np.float32)
    vectors = vectors[np.random.default_rng(0).permutation(len(vectors))]
    fitted, rest = np.array_split(vectors, 2)
    rows, queries = rest[:-QUERIES], rest[-QUERIES:]
    nearest = find(queries @ rows.T, K)
    figures = {}
    for way, steps in STEPS.items():
        chain = Chain(parse_steps(steps)).fit(fitted)
        signs = [np.where(chain.floats(part) > 0, np.float32(1), np.float32(-1)) for part in (queries, rows)]
        found = find(signs[0] @ signs[1].T, RANKED)
        hits = found[:, :, None] == nearest[:, None, :]
        figures[way] = {str(count): hits[:, :count].any(axis=1).mean(axis=1).round(3).tolist() for count in (K, RANKED)}
    return figures


def draw(by_encoder: dict[str, dict[str, dict[str, Interval]]], path: Path) -> None:
    """Draw the share of the nearest ten that are found among 40 rows, for each encoder and way, as an SVG file."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
    for position, way in enumerate(STEPS):
        means = [encoder[way][str(RANKED)] for encoder in by_encoder.values()]
        places = np.arange(len(means)) + (position - 1) * 0.28
        bars = axis.bar(places, [100 * mean.value for mean in means], 0.26, label=way)
        axis.bar_label(bars, fmt="%.0f", padding=2)
    axis.set_xticks(range(len(by_encoder)), list(by_encoder))
    axis.set(ylim=(0, 105), ylabel="nearest ten among 40 rows, %")
    axis.legend(ncols=3, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.18))
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print the table, draw it, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--vectors", type=Path, nargs="+", required=True, help="unit vectors, SET.ENCODER.npy")
    arguments = options.parse_args()
    raw = {path.stem: measure_file(path) for path in arguments.vectors[: 1 if arguments.quick else None]}
    by_encoder: dict[str, Any] = {}
    for encoder in dict.fromkeys(name.rpartition(".")[2] for name in raw):
        own = [figures for name, figures in raw.items() if name.endswith(f".{encoder}")]
        by_encoder[encoder] = {
            way: {
                count: mean_interval(np.concatenate([figures[way][count] for figures in own]))
                for count in (str(K), str(RANKED))
            }
            for way in STEPS
        }
    lines = [
        [encoder, way, *(f"{100 * each.value:.1f} ± {50 * (each.high - each.low):.1f}" for each in ways[way].values())]
        for encoder, ways in by_encoder.items()
        for way in STEPS
    ]
    print(markdown_table(["encoder", "signs", "nearest ten found, %", "among 40 rows, %"], lines))
    means = {
        name: {way: {count: float(np.mean(each)) for count, each in found.items()} for way, found in figures.items()}
        for name, figures in raw.items()
    }
    summary = {
        encoder: {way: {count: asdict(each) for count, each in found.items()} for way, found in ways.items()}
        for encoder, ways in by_encoder.items()
    }
    path = write_report(arguments.out, "signs", {"encoders": summary, "means": means})
    draw(by_encoder, path.with_suffix(".svg"))


if __name__ == "__main__":
    main()
