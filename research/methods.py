"""Every transform on the same real vectors: what it keeps, in the corpus it was fitted on and in others.

Fitted on a part of a source; measured on rows of it that were kept aside, and on corpora it never saw.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.starters import compute_half_interval, print_progress, sample_vectors
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.fitting.encoding import encode_source
from lathe.training.fitting.split import split_heldout
from lathe.training.fitting.stacked import SelectedRows
from lathe.training.sources.source import open_source
from lathe.transforms import Chain, parse_steps
from lathe.transforms.quality import local_spearman_per_row, recall_per_row
from lathe.transforms.vectors import FloatArray

MOST = 3000
"""Rows of a corpus that are measured."""

WHOLE = (
    "r1",
    "r2",
    "abtt:1",
    "abtt:2",
    "abtt:3",
    "mc",
    "rand:42",
    "whitening:epsilon=1e-6,relative=false",
    "whitening:power=0.5",
    "whitening:shrinkage=ledoit-wolf",
    "int8",
    "binary",
)
REDUCERS = (
    "truncation:{k}",
    "random_selection:{k}",
    "random_projection:{k}",
    "pca:{k}",
    "pca:{k},center=directions",
    "pca:{k},center=none",
    "whitening:{k}",
    "geopres:{k}",
    "geopres:{k},int8",
    "r2,geopres:{k},nested=true",
)


def main() -> None:
    """Measure, print a table, write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--source", default="pydoc:", help="texts to fit on; by default the built-in ones")
    options.add_argument("--out-of-domain", action="append", metavar="NAME=SOURCE", help="corpora to measure on")
    options.add_argument("--dimensions", type=int, default=128, help="what the reducers reduce to")
    arguments = options.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    encoder = Encoder(DEFAULT_ENCODER)
    most = 300 if arguments.quick else MOST
    with tempfile.TemporaryDirectory() as folder:
        encoded = encode_source(open_source(arguments.source), encoder, Path(folder), print_progress)
        fit_rows, heldout = split_heldout(encoded.hashes, seed=0)
        corpora = {"held out": np.array(encoded.vectors[heldout[:most]])}
        for item in arguments.out_of_domain or ["pydoc-topics=pydoc:topics"]:
            name, _, source = item.partition("=")
            corpora[name] = sample_vectors(source, encoder, most)
        figures = []
        methods = [*WHOLE, *(method.format(k=arguments.dimensions) for method in REDUCERS)]
        for done, method in enumerate(methods):
            print_progress(done / len(methods), f"fitting and measuring {method}")
            begun = time.monotonic()
            chain = Chain(parse_steps(method)).fit(SelectedRows(encoded.vectors, fit_rows))
            figures.append(
                {"method": method, "fit_rows": len(fit_rows), "fit_seconds": time.monotonic() - begun}
                | {"bytes": chain.bytes_per_vector}
                | {"corpora": {name: measure(chain, vectors) for name, vectors in corpora.items()}}
            )
    print(as_table(figures, list(corpora)))
    print("raw figures:", write_report(arguments.out, "methods", figures), file=sys.stderr)


def measure(chain: Chain, vectors: FloatArray) -> dict[str, Any]:
    """Measure what a chain keeps of one corpus, as means over texts with 95 % intervals."""
    after = chain.floats(vectors)
    measures = {
        "local_spearman": local_spearman_per_row(vectors, after),
        "recall_at_10": recall_per_row(vectors, after, 10),
        "recall_at_10_rescored_4x": recall_per_row(vectors, after, 10, oversampling=4),
    }
    means = {name: {"mean": float(v.mean()), "ci95": compute_half_interval(v)} for name, v in measures.items()}
    return {"n": len(vectors)} | means


def as_table(figures: list[dict[str, Any]], corpora: list[str]) -> str:
    """Format recall@10 alone and rescored, and local Spearman, by method."""
    rows = []
    for figure in figures:
        cells = [f"`{figure['method']}`", f"{figure['bytes']:,}"]
        for corpus in corpora:
            measures = figure["corpora"][corpus]
            plain, rescored = measures["recall_at_10"], measures["recall_at_10_rescored_4x"]["mean"]
            spearman = measures["local_spearman"]["mean"]
            cells.append(f"{plain['mean']:.3f} ± {plain['ci95']:.3f} / {rescored:.3f} / {spearman:.3f}")
        rows.append(cells)
    return markdown_table(["steps", "bytes", *corpora], rows)


if __name__ == "__main__":
    main()
