"""Compares a chain to which texts are added month by month with fits on all of them.

Of the old texts the chain stores only moments.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import chain as chained
from typing import Any, TypeVar

import numpy as np

from benchmarks.report import markdown_table, parser, write_report
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.sources.source import open_source
from lathe.transforms import Chain, local_spearman, parse_steps, recall_at_k
from lathe.transforms.incremental import Stages, update_chain
from lathe.transforms.vectors import FloatArray

MAX_HELDOUT = 3000
STEPS = ("r2,pca:{k}", "r2,geopres:{k}")
T = TypeVar("T")


def main() -> None:
    """Measure, print the tables, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--source", default="pydoc:", help="texts in the order of time; by default the built-in ones")
    options.add_argument("--months", type=int, default=None, help="equal parts of the source, in its order")
    options.add_argument("--texts", type=int, default=None, help="how many of the source at most, spread over it")
    options.add_argument("--seed", type=int, default=0, help="of the held-out rows")
    arguments = options.parse_args()
    months = arguments.months or (4 if arguments.quick else 12)
    rows = load_vectors(arguments.source, arguments.texts or (800 if arguments.quick else None))
    parts, heldout = split_months(rows, months, arguments.seed)
    figures = {
        "source": open_source(arguments.source).name,
        "rows_a_month": len(parts[0]),
        "heldout": len(heldout),
        "chains": [measure_chain(steps.format(k=32 if arguments.quick else 128), parts, heldout) for steps in STEPS],
    }
    print_figures(figures)
    print("raw figures:", write_report(arguments.out, "incremental", figures), file=sys.stderr)


def load_vectors(source: str, most: int | None) -> FloatArray:
    """Encode the distinct texts of a source `(n, d)`, in its order.

    Args:
        source: the source.
        most: maximum number of texts, spread over the source; None for all.
    """
    batches = (batch.values for batch in open_source(source).batches())
    texts = list(dict.fromkeys(text for text in chained.from_iterable(batches) if isinstance(text, str) and text))
    chosen = np.linspace(0, len(texts) - 1, min(most or len(texts), len(texts))).astype(int)
    return Encoder(DEFAULT_ENCODER).encode([texts[i] for i in chosen]).vectors


def split_months(rows: FloatArray, months: int, seed: int) -> tuple[list[FloatArray], FloatArray]:
    """Split rows into months and held-out rows, a fifth of all."""
    chosen = np.random.default_rng(seed).choice(len(rows), min(len(rows) // 5, MAX_HELDOUT), replace=False)
    fitted = np.delete(rows, chosen, axis=0)
    return np.array_split(fitted, months), rows[np.sort(chosen)]


def measure_chain(steps: str, parts: list[FloatArray], heldout: FloatArray) -> dict[str, Any]:
    """Measure cost and quality of each month for three chains.

    Rows are added month by month to one chain, a second is fitted on all rows so far, and the third is the unchanged
    chain of the first month.
    """
    first, seconds = time_call(partial(fit_steps, steps, parts[0]))
    added, moments = first, Stages.of(first).take_moments(first, parts[0])
    months_measured = []
    for month in range(2, len(parts) + 1):
        rows = parts[month - 1]
        refit, added_seconds = time_call(partial(update_chain, added, moments, rows))
        added, moments = refit.chain, refit.moments
        so_far = np.concatenate(parts[:month])
        whole, whole_seconds = time_call(partial(fit_steps, steps, so_far))
        sides = {"added": (added, added_seconds), "whole": (whole, whole_seconds), "first": (first, seconds)}
        months_measured.append(
            {"month": month, "rows": len(so_far), "kept": refit.retained}
            | {
                name: {"seconds": took} | compute_agreement(chain, whole) | measure_quality(chain, heldout)
                for name, (chain, took) in sides.items()
            }
        )
    return {"steps": steps, "months": months_measured}


def fit_steps(steps: str, rows: FloatArray) -> Chain:
    """Fit a chain of steps on rows."""
    return Chain(parse_steps(steps)).fit(rows)


def time_call(run: Callable[[], T]) -> tuple[T, float]:
    """Call a function, and return its result with the seconds that took."""
    begun = time.perf_counter()
    return run(), time.perf_counter() - begun


def compute_agreement(chain: Chain, whole: Chain) -> dict[str, float]:
    """Compute how far a chain is from the fit on all rows.

    Returns:
        The angle between the directions of R2, in degrees, and the mean cos² of the principal angles
        between the spans of the reductions: 1 for the same span, k/d by chance.
    """
    direction, whole_direction = (convert_to_array(steps[0].direction) for steps in (chain, whole))
    chord = float(
        np.linalg.norm(direction / np.linalg.norm(direction) - whole_direction / np.linalg.norm(whole_direction))
    )
    spans = [np.linalg.qr(convert_to_array(steps[1].weight).T)[0] for steps in (chain, whole)]
    cosines = np.linalg.svd(spans[0].T @ spans[1], compute_uv=False)
    return {"angle": float(np.degrees(2 * np.arcsin(min(chord / 2, 1)))), "span": float((cosines**2).mean())}


def convert_to_array(tensor: Any) -> FloatArray:
    """Convert a fitted tensor to an array in float64."""
    return np.asarray(tensor.detach().double().numpy())


def measure_quality(chain: Chain, heldout: FloatArray) -> dict[str, float]:
    """Measure what a chain retains of held-out rows."""
    after = chain.transform(heldout)
    return {"recall_at_10": recall_at_k(heldout, after, 10), "local_spearman": local_spearman(heldout, after)}


def print_figures(figures: dict[str, Any]) -> None:
    """Print the figures as tables."""
    print(f"{figures['source']}, {figures['rows_a_month']:,} rows a month, {figures['heldout']:,} held out\n")
    header = ["month", "rows", "seconds", "R2's angle to the whole fit", "span shared with it", "recall@10"]
    for chain in figures["chains"]:
        print(f"`{chain['steps']}`: rows added / fitted on all / the first month's chain\n")
        print(markdown_table([*header, "local Spearman"], [format_row(month) for month in chain["months"]]), "\n")


def format_row(month: dict[str, Any]) -> list[str]:
    """Format a month as a row of the table."""

    def sides(name: str, form: str, without: tuple[str, ...] = ()) -> str:
        return " / ".join(form.format(month[side][name]) for side in ("added", "whole", "first") if side not in without)

    return [
        str(month["month"]),
        f"{month['rows']:,}",
        sides("seconds", "{:.2f}", without=("first",)),
        sides("angle", "{:.4f}°", without=("whole",)),
        sides("span", "{:.5f}", without=("whole",)),
        sides("recall_at_10", "{:.4f}"),
        sides("local_spearman", "{:.4f}"),
    ]


if __name__ == "__main__":
    main()
