"""Measures how much of the encoder's geometry the starter chains retain, relative to truncating its vectors.

This is measured on the held-out sentences of their own fit (given the same folder of sentences; their digest is
compared with the one in the chain's manifest) and on corpora they never saw.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import markdown_table, parser, write_report
from lathe.service.chains.registry import STARTERS
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.fitting.encoding import encode_source
from lathe.training.fitting.split import split_heldout
from lathe.training.sources.source import open_source
from lathe.transforms import Chain
from lathe.transforms.quality import local_spearman_per_row, recall_per_row
from lathe.transforms.quality.metrics import search_recall_per_row
from lathe.transforms.statistics import unit_rows
from lathe.transforms.vectors import FloatArray

SIZES = (128, 96, 64, 32)
MAX_OUT_OF_DOMAIN = 3000


def main() -> None:
    """Measure, print the table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--sentences", help="the folder the starter chains were fitted on")
    options.add_argument("--out-of-domain", action="append", metavar="NAME=SOURCE", help="more corpora to measure on")
    arguments = options.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    encoder = Encoder(DEFAULT_ENCODER)
    most = 500 if arguments.quick else MAX_OUT_OF_DOMAIN
    corpora: dict[str, FloatArray] = {}
    if arguments.sentences:
        corpora["held out"] = load_heldout_vectors(arguments.sentences, encoder)
    for item in ["pydoc=pydoc:", *(arguments.out_of_domain or [])]:
        name, _, source = item.partition("=")
        corpora[name] = sample_vectors(source, encoder, most)
    figures = [figure for name, vectors in corpora.items() for figure in measure(name, vectors)]
    print(format_table(figures, list(corpora)))
    print("raw figures:", write_report(arguments.out, "starters", figures), file=sys.stderr)


def load_heldout_vectors(sentences: str, encoder: Encoder) -> FloatArray:
    """Return the vectors of the rows that the fit of `compact` held out.

    Raises:
        SystemExit: if these are other sentences than it was fitted on.
    """
    provenance = Chain.load(STARTERS / "compact/1").metadata["provenance"]
    with tempfile.TemporaryDirectory() as folder:
        encoded = encode_source(open_source(sentences), encoder, Path(folder), print_progress)
        if encoded.digest != provenance["rows_digest"]:
            sys.exit(f"{sentences} does not hold the sentences the starter chains were fitted on")
        _, heldout = split_heldout(encoded.hashes, provenance["seed"])
        return np.array(encoded.vectors[heldout])


def sample_vectors(written: str, encoder: Encoder, most: int) -> FloatArray:
    """Encode distinct texts spread evenly over a source."""
    texts = [text for batch in open_source(written).batches() for text in batch.values if isinstance(text, str)]
    texts = list(dict.fromkeys(text for text in texts if text.strip()))
    chosen = [texts[i] for i in np.linspace(0, len(texts) - 1, min(most, len(texts))).astype(int)]
    return encoder.encode(
        chosen, on_batch=lambda done: print_progress(done / len(chosen), f"encoding {written}")
    ).vectors


def measure(corpus: str, vectors: FloatArray) -> list[dict[str, Any]]:
    """Measure every chain and truncation at every size on one corpus."""
    compact, debias, codes = (Chain.load(STARTERS / name / "1") for name in ("compact", "debias", "codes48"))
    reduced = {("debias", vectors.shape[1]): debias.transform(vectors)}
    for size in SIZES:
        reduced["compact", size] = compact.transform(vectors, dimensions=size)
        reduced["truncation", size] = unit_rows(torch.from_numpy(vectors[:, :size].copy())).numpy()
    reduced["codes48", vectors.shape[1]] = codes.floats(vectors)
    figures: list[dict[str, Any]] = []
    for (method, size), after in reduced.items():
        print_progress(len(figures) / len(reduced), f"measuring {method} at {size} on {corpus}")
        # Only codes are searched by other floats than they stand for.
        queries = codes.transform_queries(vectors) if method == "codes48" else None
        measures = {
            "local_spearman": local_spearman_per_row(vectors, after),
            "recall_at_10": compute_recall(vectors, queries, after, 1),
            "recall_at_10_rescored_4x": compute_recall(vectors, queries, after, 4),
        }
        octets = 4 * size if queries is None else codes.bytes_per_vector
        figures.append(
            {"corpus": corpus, "n": len(vectors), "method": method, "dimensions": size, "bytes": octets}
            | {name: {"mean": float(v.mean()), "ci95": compute_half_interval(v)} for name, v in measures.items()}
        )
    return figures


def compute_recall(before: FloatArray, queries: FloatArray | None, after: FloatArray, oversampling: int) -> FloatArray:
    """Compute the recall@10 of each row by its own floats after the reduction, or by those of `queries`."""
    if queries is None:
        return recall_per_row(before, after, 10, oversampling)
    return search_recall_per_row(before, queries, after, 10, oversampling)


def compute_half_interval(values: FloatArray) -> float:
    """Return half the width of the 95 % interval of a mean over anchors."""
    return float(1.96 * values.std(ddof=1) / np.sqrt(len(values)))


def format_table(figures: list[dict[str, Any]], corpora: list[str]) -> str:
    """Format recall@10, plain and rescored, by method and size as a table."""
    by_key = {(f["method"], f["dimensions"], f["corpus"]): f for f in figures}
    rows = []
    for method, size, octets in dict.fromkeys((f["method"], f["dimensions"], f["bytes"]) for f in figures):
        cells = [method, str(size), str(octets)]
        for corpus in corpora:
            figure = by_key[method, size, corpus]
            plain, rescored = figure["recall_at_10"], figure["recall_at_10_rescored_4x"]
            cells.append(f"{plain['mean']:.3f} ± {plain['ci95']:.3f} / {rescored['mean']:.3f}")
        rows.append(cells)
    return markdown_table(["method", "dimensions", "bytes", *corpora], rows)


def print_progress(fraction: float, message: str) -> None:
    """Print the progress in [0, 1] and a message over the previous line on stderr.

    The last call ends its line.
    """
    end = "" if fraction < 1 else "\n"
    print(f"\r\033[K{100 * fraction:3.0f}% {message}", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
