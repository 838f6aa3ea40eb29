"""Measures compressed vectors on corpora that grow, whose relevance is controlled, as CoRECT does (arXiv 2510.19340).

    python -m research.evidence.corect --data FOLDER --encoders FOLDER --texts FILE.jsonl

Each query has ten relevant documents and twenty distractors, and they are in every corpus. Only random texts are added.
Every method is fitted once, on the smallest corpus, and nothing is tuned.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.codes.data import EncodedData, list_encoders, make_data_parser
from benchmarks.codes.measure import compute_ndcg
from benchmarks.codes.methods import rank_best
from benchmarks.report import markdown_table, write_report
from benchmarks.starters import print_progress
from lathe.training.comparison import Interval, mean_interval
from lathe.training.reporting.text import format_half_width
from research.evidence.corect.collection import DISTRACTORS, RELEVANT, Collection, build_collection
from research.evidence.corect.compression import FLOATS, Compression, Vectors, fit_compressions
from research.evidence.corect.plot import write_plot

ENCODERS = ("MiniLM", "WordLlama")
SIZES = (10_000, 30_000, 100_000)
"""Documents of the corpora; the largest has all there are, if these are fewer."""
NDCG_DEPTH, RECALL_DEPTH = 10, 100
RANDOM = "random texts"
METRICS = ("ndcg_at_10", "recall_at_100")
SHOWN = frozenset(
    {("casting", 4), ("binary", 32), ("LSH", 32), ("PQ", 8), ("PQ", 32), ("PQ", 128)}
    | {(family, factor) for family in ("truncation", "PCA", "GeoPres") for factor in (2, 4, 8)}
    | {("equal distance", factor) for factor in (4, 8, 16)}
    | {(family, factor) for family in ("codes", "product_codes") for factor in (32, 64)}
)
"""Families and factors of compression that the summary shows."""
BLOCK_ROWS = 10_000
"""Documents that are compressed at once."""

Scores = NDArray[np.float64]
"""A score of each query `(a,)`."""


def main() -> None:
    """Measure every encoder, print its tables, write the raw figures and the picture."""
    options = make_data_parser(__doc__)
    options.add_argument("--texts", required=True, help="a source of random texts, such as FILE.jsonl")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    collection = build_collection(arguments.data, arguments.texts)
    total = len(collection.documents) + len(collection.chosen)
    sizes = sorted({min(size, total) for size in SIZES})
    found: dict[str, Any] = {
        "queries": count_queries(collection),
        "relevant": RELEVANT,
        "distractors": DISTRACTORS,
        "documents": len(collection.documents),
        "sizes": sizes,
        "encoders": {},
    }
    for encoder in list_encoders(arguments.encoders, arguments.encoder or list(ENCODERS)):
        data = EncodedData(arguments.data, arguments.work, encoder)
        queries = data.encoded("queries", [query.text for query in collection.queries], encoder.query)
        documents = data.encoded("documents", collection.documents, encoder.document)
        sample = data.encoded(RANDOM, collection.sample, encoder.query)
        corpus = np.concatenate([documents, sample[collection.chosen]])[: sizes[-1]]
        rows = measure(collection, queries, corpus, sizes)
        found["encoders"][encoder.name] = {"dimensions": corpus.shape[1], "methods": rows}
        print(f"\n**{encoder.name}**\n\n{build_table(rows, sizes)}")
    print(f"\n{build_summary(found)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_plot(arguments.out, found)
    print("raw figures:", write_report(arguments.out, "evidence-corect", found), file=sys.stderr)


def count_queries(collection: Collection) -> dict[str, int]:
    """Count the queries of each data set."""
    names = [query.data_set for query in collection.queries]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def measure(collection: Collection, queries: Vectors, corpus: Vectors, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Fit every compression on the smallest corpus and search all corpora with it.

    A row has lists of scores and changes, with an item for each corpus. Changes are differences to the vectors as they
    are, paired by query, in points. The growth is the change in the largest corpus minus that in the smallest.

    Args:
        collection: queries with their relevant documents.
        queries: unit vectors of the queries `(a, d)`.
        corpus: unit vectors of the documents `(n, d)`, in the order in which corpora grow.
        sizes: numbers of documents of the corpora, ascending.

    Returns:
        A row for each method.
    """
    rows = []
    raw: list[dict[str, Scores]] = []
    for compression in fit_compressions(corpus[: sizes[0]]):
        print_progress(0, compression.name)
        scores = search(compression, collection, queries, corpus, sizes)
        if compression.name == FLOATS:
            raw = scores
        changes = [
            {name: 100 * (one[name] - before[name]) for name in METRICS}
            for one, before in zip(scores, raw, strict=True)
        ]
        rows.append(
            {
                "method": compression.name,
                "family": compression.family,
                "bytes": compression.size,
                "scores": [_summarize(one, 100) for one in scores],
                "changes": [_summarize(one) for one in changes],
                "growth": _summarize({name: changes[-1][name] - changes[0][name] for name in METRICS}),
            }
        )
    return rows


def _summarize(scores: dict[str, Scores], factor: float = 1) -> dict[str, Any]:
    """Return the mean over queries of each metric times a factor, with its 95 % interval."""
    return {name: asdict(mean_interval(factor * values)) for name, values in scores.items()}


def search(
    compression: Compression, collection: Collection, queries: Vectors, corpus: Vectors, sizes: Sequence[int]
) -> list[dict[str, Scores]]:
    """Search every corpus with compressed vectors, and return the metrics of each query, corpus by corpus."""
    asked = compression.queries(queries)
    starts = range(0, len(corpus), BLOCK_ROWS)
    blocks = [asked @ compression.documents(corpus[start : start + BLOCK_ROWS]).T for start in starts]
    likeness = np.concatenate(blocks, axis=1)
    for row, query in enumerate(collection.queries):
        likeness[row, list(query.ignored)] = -np.inf
    gains = [dict.fromkeys(query.relevant, 1) for query in collection.queries]
    found = []
    for size in sizes:
        best = rank_best(likeness[:, :size], RECALL_DEPTH)
        recall = [np.isin(ids, list(grades)).sum() / RELEVANT for ids, grades in zip(best, gains, strict=True)]
        found.append({"ndcg_at_10": compute_ndcg(best[:, :NDCG_DEPTH], gains), "recall_at_100": np.array(recall)})
    return found


def build_table(rows: Sequence[dict[str, Any]], sizes: Sequence[int]) -> str:
    """Build the table of the changes of both metrics in the smallest and the largest corpus, and of their growth.

    They are in points, with half their intervals. The first row has scores instead of changes.
    """
    columns = [f"{label}, {size:,}" for label in ("nDCG@10", "recall@100") for size in (sizes[0], sizes[-1])]
    cells = []
    for row in rows:
        kind = "scores" if row["method"] == FLOATS else "changes"
        values = [Interval(**row[kind][place][name]) for name in METRICS for place in (0, -1)]
        spec = ".1f" if kind == "scores" else "+.1f"
        written = [format_half_width(value, spec) for value in values]
        growth = format_half_width(Interval(**row["growth"]["ndcg_at_10"]), "+.1f")
        cells.append([row["method"], str(row["bytes"]), *written, growth])
    return markdown_table(["method", "bytes", *columns, "growth of the change, nDCG@10"], cells)


def build_summary(figures: Mapping[str, Any]) -> str:
    """Build the table of the changes in the largest corpus for all encoders side by side, of the methods in `SHOWN`.

    An encoder's columns are nDCG@10, recall@100, and how much the change of recall@100 is above that in the smallest
    corpus.
    """
    titles = ("nDCG@10", "recall@100", "its growth")
    header = ["method", "bytes", *(f"{name}, {title}" for name in figures["encoders"] for title in titles)]
    cells = []
    for rows in zip(*(encoder["methods"] for encoder in figures["encoders"].values()), strict=True):
        factor = next(iter(figures["encoders"].values()))["methods"][0]["bytes"] / rows[0]["bytes"]
        if (rows[0]["family"], factor) not in SHOWN:
            continue
        label = rows[0]["method"]
        if any(row["method"] != label for row in rows):  # the number of parts or bytes depends on the dimensions
            _, times, bits = label.partition(" × ")
            label = f"{rows[0]['family']}, {bits}" if times else rows[0]["family"]
        values = [
            value
            for row in rows
            for value in (*(row["changes"][-1][name] for name in METRICS), row["growth"]["recall_at_100"])
        ]
        written = [format_half_width(Interval(**value), "+.1f") for value in values]
        cells.append([label, f"1/{factor:.0f}", *written])
    return markdown_table(header, cells)


if __name__ == "__main__":
    main()
