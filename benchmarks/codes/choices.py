"""Measures the codes that a fit chooses among, and its choice for vectors without texts, beside FAISS's OPQ.

Run it as `python -m benchmarks.codes.choices --vectors SET.ENCODER.npy …`: each file holds unit vectors of a data set
by an encoder. Everything is fitted on one half of the rows, of which a fit holds out a fifth to choose by. In the other
half, 300 rows search the others with floats, and the nearest are those by the vectors. Differences are paired by query.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.codes.__main__ import BUDGETS
from benchmarks.codes.few import search_neighbours
from benchmarks.codes.measure import K, average_differences
from benchmarks.codes.methods import OPQ_NAMES, rank_best, train_opq
from benchmarks.report import markdown_table, parser, write_report
from lathe.training.fitting.code_search import search_codes
from lathe.transforms import Chain, ProductCoding, TransformCoding
from lathe.transforms.progress import no_progress

CHOICE = "the choice of a fit"
CANDIDATES: dict[str, Callable[[int], TransformCoding]] = {
    "codes, λ = 0": TransformCoding,
    "codes, λ = 0.5": lambda budget: TransformCoding(budget, weighting=0.5),
    "one bit for each rotated axis": lambda budget: TransformCoding(budget, bits=1, rotation="random"),
    "product_codes, λ = 0": ProductCoding,
    "product_codes, λ = 0.5": lambda budget: ProductCoding(budget, weighting=0.5),
}


def measure_file(path: Path, budgets: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return, for each budget, the share of the nearest that each query finds by each method, and the fit's choice."""
    vectors = np.load(path).astype(np.float32)
    fitted, half = np.array_split(vectors[np.random.default_rng(0).permutation(len(vectors))], 2)
    rows, queries, score = search_neighbours(half)
    figures = []
    for budget in budgets:
        found = {}
        for name, build in CANDIDATES.items():
            if name.startswith("one bit") and 8 * budget > rows.shape[1]:
                continue
            step = build(budget).fit(fitted)
            found[name] = score(rank_best(step.score(queries, step.transform(rows)), K))
        heldout, learned = np.split(fitted, [len(fitted) // 5])
        chain = Chain([TransformCoding(budget)]).fit(learned)
        chosen = search_codes(chain, learned, "vectors without texts", heldout, None, no_progress).chain.quantizer
        assert isinstance(chosen, TransformCoding)
        found[CHOICE] = score(rank_best(chosen.score(queries, chosen.transform(rows)), K))
        _, opq = train_opq(fitted, rows, budget, 0)
        found[OPQ_NAMES[1]] = score(opq.search(queries, K))
        choice = {"kind": chosen.kind, "weighting": chosen.weighting}
        figures.append(
            {"budget": budget, "choice": choice, "recall": {k: v.round(3).tolist() for k, v in found.items()}}
        )
    return figures


def summarize(by_file: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the mean recall of each method over the files, and how far it is ahead of OPQ, for each budget."""
    summary = []
    for cells in zip(*by_file.values(), strict=True):
        for name in cells[0]["recall"]:
            pairs = [100 * np.array([cell["recall"][name], cell["recall"][OPQ_NAMES[1]]]) for cell in cells]
            mean, reach = average_differences([one - opq for one, opq in pairs])
            row = {"budget": cells[0]["budget"], "method": name, "recall": float(np.mean([pair[0] for pair in pairs]))}
            least = min(float((one - opq).mean()) for one, opq in pairs)
            summary.append(row | {"files": len(cells), "ahead": mean, "ci95": reach, "least": least})
    return summary


def main() -> None:
    """Measure the files, print the table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--vectors", type=Path, nargs="+", required=True, help="files SET.ENCODER.npy")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    by_file = {}
    for path in sorted(arguments.vectors):
        by_file[path.stem] = measure_file(path, BUDGETS[:1] if arguments.quick else BUDGETS)
        print(path.stem, flush=True)
    summary = summarize(by_file)
    lines = [
        [str(row["budget"]), row["method"], f"{row['recall']:.1f}", f"{row['ahead']:+.2f} ± {row['ci95']:.2f}"]
        + [f"{row['least']:+.2f}"]
        for row in summary
    ]
    print(markdown_table(["bytes", "method", "recall@10", "ahead of OPQ", "least, of the files"], lines))
    print("raw figures:", write_report(arguments.out, "codes-choices", {"summary": summary, "files": by_file}))


if __name__ == "__main__":
    main()
