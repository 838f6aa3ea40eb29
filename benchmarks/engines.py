"""Compares `lathe fit` by Ray with the local engine, on the same cores, as the number of texts grows.

Fits of both are run in pairs, in an order that alternates. The cost of Ray before its first fit is measured separately:
starting it, its workers, and the encoder in each of them.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import markdown_table, parser, write_report
from lathe.training.distributed import ray_engine
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.fitting.encoding import LOCAL, FitEngine
from lathe.training.fitting.fit import fit_new_chain
from lathe.training.fitting.requests import NewFit, RowSource
from lathe.training.sources.source import open_source
from lathe.transforms import parse_steps
from lathe.transforms.progress import no_progress

MAX_FACTOR = 1.1
"""Factor below which the overhead counts as small."""


def main() -> None:
    """Measure, print the table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--source", default="pydoc:", help="texts; by default the built-in ones")
    options.add_argument("--counts", type=int, nargs="+", default=None, help="how many texts to fit on")
    options.add_argument("--rounds", type=int, default=None, help="pairs of fits for each")
    options.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="threads here, and workers of Ray")
    options.add_argument("--steps", default="r2,pca:128")
    arguments = options.parse_args()
    counts = sorted(arguments.counts or ([300, 600] if arguments.quick else [1000, 5000, 20_000, 50_000]))
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    texts = [t for batch in open_source(arguments.source).batches() for t in batch.values if isinstance(t, str)]
    if max(counts) > len(texts):
        sys.exit(f"{arguments.source} holds {len(texts)} texts, fewer than {max(counts)}")
    torch.set_num_threads(arguments.cores)
    encoder = Encoder(DEFAULT_ENCODER)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for count in counts:
            (work / f"{count}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts[:count]))
        fit = make_fitter(encoder, arguments.steps, work)
        fit(LOCAL, counts[0])  # encodes the out-of-domain text, which is kept
        begun = time.monotonic()
        with ray_engine(None, arguments.cores) as engine:
            fit(engine, counts[0])
            first = time.monotonic() - begun
            pairs = {count: time_pairs(fit, engine, count, rounds) for count in counts}
    cold = first - statistics.median(ray for _, ray in pairs[counts[0]])
    figures = [compute_figures(count, loads, cold) for count, loads in pairs.items()]
    print_report(figures, cold)
    about = {"steps": arguments.steps, "cores": arguments.cores, "cold_start_seconds": cold, "fits": figures}
    print("raw figures:", write_report(arguments.out, "engines", about), file=sys.stderr)


def make_fitter(encoder: Encoder, steps: str, work: Path) -> Callable[[FitEngine, int], float]:
    """Return a function that fits on a number of texts by an engine, and returns the seconds."""
    specs = [step.spec() for step in parse_steps(steps)]

    def fit(engine: FitEngine, count: int) -> float:
        begun = time.monotonic()
        request = NewFit(name="bench", steps=specs, source=RowSource(path=str(work / f"{count}.jsonl")))
        with fit_new_chain(request, encoder, work / "vectors", no_progress, engine=engine):
            return time.monotonic() - begun

    return fit


def time_pairs(
    fit: Callable[[FitEngine, int], float], engine: FitEngine, count: int, rounds: int
) -> list[tuple[float, float]]:
    """Time fits of the local engine and of Ray in pairs, each going first in every second pair.

    Returns:
        Seconds of the local engine and of Ray, for each pair.
    """
    seconds_of_pairs = []
    for number in range(rounds):
        order = (LOCAL, engine) if number % 2 == 0 else (engine, LOCAL)
        seconds = {id(fit_engine): fit(fit_engine, count) for fit_engine in order}
        seconds_of_pairs.append((seconds[id(LOCAL)], seconds[id(engine)]))
        print(
            f"{count:,} texts: local {seconds_of_pairs[-1][0]:.1f} s, ray {seconds_of_pairs[-1][1]:.1f} s",
            file=sys.stderr,
        )
    return seconds_of_pairs


def compute_figures(count: int, pairs: list[tuple[float, float]], cold: float) -> dict[str, Any]:
    """Compute how many times the seconds of the local engine Ray takes, warm and cold."""
    return {
        "texts": count,
        "local_seconds": [local for local, _ in pairs],
        "ray_seconds": [ray for _, ray in pairs],
        "factor": statistics.median(ray / local for local, ray in pairs),
        "factors": sorted(ray / local for local, ray in pairs),
        "factor_cold": statistics.median((ray + cold) / local for local, ray in pairs),
    }


def print_report(figures: list[dict[str, Any]], cold: float) -> None:
    """Print the table, the cold start, and from how many texts on the overhead is small."""
    header = ["texts", "local s", "ray s", "factor", "range", "factor with a cold start"]
    rows = [
        [
            f"{f['texts']:,}",
            f"{statistics.median(f['local_seconds']):.1f}",
            f"{statistics.median(f['ray_seconds']):.1f}",
            f"{f['factor']:.2f}",
            f"{f['factors'][0]:.2f} to {f['factors'][-1]:.2f}",
            f"{f['factor_cold']:.2f}",
        ]
        for f in figures
    ]
    print(markdown_table(header, rows))
    print(f"a cold start takes {cold:.1f} s")
    for name, key in (("warm", "factor"), ("with a cold start", "factor_cold")):
        small = find_small_overhead(figures, key)
        where = f"from {small:,} texts on" if small else "nowhere measured"
        print(f"{name}: the overhead is under 10 % {where}")


def find_small_overhead(figures: list[dict[str, Any]], key: str) -> int | None:
    """Return the number of texts from which on every factor is small, or None if the last one is not."""
    texts = None
    for figure in reversed(figures):
        if figure[key] >= MAX_FACTOR:
            break
        texts = figure["texts"]
    return texts


if __name__ == "__main__":
    main()
