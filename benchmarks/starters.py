"""What the starter chains keep of the encoder's geometry, against cutting its vectors short.

Measured on the held-out sentences of their own fit (given the same folder of sentences; their
digest is compared with the one in the chain's manifest) and on corpora they never saw.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import markdown_table, parser, write_report
from lathe.service.chains.starters import STARTERS
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.fitting.encoding import encode_source
from lathe.training.fitting.split import split_heldout
from lathe.training.sources.source import open_source
from lathe.transforms import Chain
from lathe.transforms.quality import local_spearman_of_anchors, recall_of_anchors
from lathe.transforms.quality.metrics import search_recall_of_anchors
from lathe.transforms.statistics import unit_rows
from lathe.transforms.vectors import FloatArray

SIZES = (128, 96, 64, 32)
MOST_FOREIGN = 3000


def main() -> None:
    """Measure, print a table, write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--sentences", help="the folder the starter chains were fitted on")
    options.add_argument("--out-of-domain", action="append", metavar="NAME=SOURCE", help="more corpora to measure on")
    given = options.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    encoder = Encoder(DEFAULT_ENCODER)
    most = 500 if given.quick else MOST_FOREIGN
    corpora: dict[str, FloatArray] = {}
    if given.sentences:
        corpora["held out"] = heldout_vectors(given.sentences, encoder)
    for item in ["pydoc=pydoc:", *(given.out_of_domain or [])]:
        name, _, source = item.partition("=")
        corpora[name] = sampled_vectors(source, encoder, most)
    figures = [figure for name, vectors in corpora.items() for figure in measure(name, vectors)]
    print(as_table(figures, list(corpora)))
    print("raw figures:", write_report(given.out, "starters", figures), file=sys.stderr)


def heldout_vectors(sentences: str, encoder: Encoder) -> FloatArray:
    """The rows that the fit of `compact` kept aside.

    Raises:
        SystemExit: if these are other sentences than it was fitted on.
    """
    provenance = Chain.load(STARTERS / "compact/1").metadata["provenance"]
    with tempfile.TemporaryDirectory() as folder:
        encoded = encode_source(open_source(sentences), encoder, Path(folder), show)
        if encoded.digest != provenance["rows_digest"]:
            sys.exit(f"{sentences} does not hold the sentences the starter chains were fitted on")
        _, heldout = split_heldout(encoded.hashes, provenance["seed"])
        return np.array(encoded.vectors[heldout])


def sampled_vectors(written: str, encoder: Encoder, most: int) -> FloatArray:
    """Vectors of distinct texts spread evenly over a source."""
    texts = [text for batch in open_source(written).batches() for text in batch.values if isinstance(text, str)]
    texts = list(dict.fromkeys(text for text in texts if text.strip()))
    chosen = [texts[i] for i in np.linspace(0, len(texts) - 1, min(most, len(texts))).astype(int)]
    return encoder.encode(chosen, on_batch=lambda done: show(done / len(chosen), f"encoding {written}")).vectors


def measure(corpus: str, vectors: FloatArray) -> list[dict[str, Any]]:
    """Every chain and cut at every size on one corpus."""
    compact, debias, codes = (Chain.load(STARTERS / name / "1") for name in ("compact", "debias", "codes48"))
    reduced = {("debias", vectors.shape[1]): debias.transform(vectors)}
    for size in SIZES:
        reduced["compact", size] = compact.transform(vectors, dimensions=size)
        reduced["truncation", size] = unit_rows(torch.from_numpy(vectors[:, :size].copy())).numpy()
    reduced["codes48", vectors.shape[1]] = codes.floats(vectors)
    found: list[dict[str, Any]] = []
    for (method, size), after in reduced.items():
        show(len(found) / len(reduced), f"measuring {method} at {size} on {corpus}")
        # Only codes are searched by other floats than they stand for.
        queries = codes.transform_queries(vectors) if method == "codes48" else None
        measures = {
            "local_spearman": local_spearman_of_anchors(vectors, after),
            "recall_at_10": recall_by(vectors, queries, after, 1),
            "recall_at_10_rescored_4x": recall_by(vectors, queries, after, 4),
        }
        octets = 4 * size if queries is None else codes.bytes_per_vector
        found.append(
            {"corpus": corpus, "n": len(vectors), "method": method, "dimensions": size, "bytes": octets}
            | {name: {"mean": float(v.mean()), "ci95": interval(v)} for name, v in measures.items()}
        )
    return found


def recall_by(before: FloatArray, queries: FloatArray | None, after: FloatArray, oversampling: int) -> FloatArray:
    """The recall@10 of each row by its own floats after, or by those of `queries`."""
    if queries is None:
        return recall_of_anchors(before, after, 10, oversampling)
    return search_recall_of_anchors(before, queries, after, 10, oversampling)


def interval(values: FloatArray) -> float:
    """Half the width of the 95 % interval of a mean over anchors."""
    return float(1.96 * values.std(ddof=1) / np.sqrt(len(values)))


def as_table(figures: list[dict[str, Any]], corpora: list[str]) -> str:
    """recall@10, plain and rescored, by method and size."""
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


def show(fraction: float, message: str) -> None:
    """Print the progress in [0, 1] and a message over the line before, to stderr; the last one ends its line."""
    end = "" if fraction < 1 else "\n"
    print(f"\r\033[K{100 * fraction:3.0f}% {message}", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
