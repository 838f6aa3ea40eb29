"""What a chain of transforms costs on the vectors of an existing vector store, measured before an import."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lathe.service.index.embedded.graphs import create_graph
from lathe.service.index.embedded.graphs.graph import estimate_float_graph
from lathe.service.index.embedded.vector_formats import choose_format, score_floats
from lathe.service.index.importing import load_vectors
from lathe.service.index.reducer import Reducer, Vectors
from lathe.service.index.spec import IndexSpec
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import NotFiniteError
from lathe.training.settings import Metric
from lathe.training.sources.source import Source
from lathe.transforms.progress import Progress
from lathe.transforms.quality import measure_geometry

SAMPLE_ROWS = 2000
"""Number of rows on which the cost of the chain is measured."""
EQUAL_LENGTHS = 1.01
"""Ratio of the longest vector to the shortest below which all count as of one length."""
LENGTH_ROWS = 100
"""Number of rows by which it is found out whether a chain drops lengths."""


@dataclass(frozen=True)
class ImportCost:
    """What a chain of transforms costs on the vectors of a store: recall on a sample, and bytes before and after.

    Attributes:
        rows: number of rows in the store.
        sampled: number of distinct, nonzero rows measured on.
        quality: `local_spearman`, `recall_at_10`, `recall_at_10_rescored_4x`, `positional_stress`. Recall is by the
            metric of the index.
        bytes_per_vector: {before, after}: size of a float32 original, and of a reduced vector or its code.
        graph_bytes: {before, after}: estimated size of a graph over all originals as floats, and of the index's graph;
            0 if none of its engines is installed.
        warning: sentence that says that the chain drops the lengths by which the metric compares; None if it does not.
    """

    rows: int
    sampled: int
    quality: dict[str, float | None]
    bytes_per_vector: dict[str, int]
    graph_bytes: dict[str, int]
    warning: str | None = None


def measure_cost(
    source: Source, encoder: TextEncoder | None, spec: IndexSpec, reducer: Reducer, on_progress: Progress
) -> ImportCost:
    """Measure on a sample what reducing the vectors of a source costs in recall and saves in bytes.

    Up to 2,000 rows spread over the source are measured. The source is read to the end. Sampled duplicates and zero
    vectors are left out.

    Args:
        source: vectors or texts.
        encoder: encoder of the texts; None for vectors.
        spec: settings of the index.
        reducer: maps originals to the vectors that are searched.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        BadValueError: if the vectors have the wrong number of dimensions.
        NotFiniteError: if the encoder gives NaN or inf for a text of the sample.
    """
    total = source.count()
    # Spread over the whole source, as stores are often sorted by topic or date.
    numbers = np.unique(np.linspace(0, max(total - 1, 0), SAMPLE_ROWS).astype(int))
    values: list[Any] = []
    read = 0
    for batch in source.batches():
        inside = numbers[(numbers >= read) & (numbers < read + len(batch))] - read
        values += [batch.values[position] for position in inside]
        read += len(batch)
        on_progress(0.5 * min(read / max(total, 1), 1), f"reading a sample, {read:,} of {total:,} rows")

    doing = "measuring" if encoder is None else "encoding a sample to measure"
    on_progress(0.5, f"{doing} {spec.chain} on {len(values):,} rows")
    try:
        sample = np.unique(load_vectors(values, encoder, spec), axis=0)
    except NotFiniteError as error:
        raise error.at(f"row {numbers[error.position or 0] + 1:,}") from None
    sample = sample[sample.any(axis=1)]
    queries = None if reducer.quantizer is None else reducer.reduce_unquantized(sample)
    reduced = reducer.reduce_documents(sample)
    quality = measure_geometry(sample, reduced, queries)
    if spec.metric != "cosine":
        quality |= _measure_recall(sample, reducer.reduce_queries(sample), reduced, spec.metric)
    graph = create_graph(spec, choose_format(spec, reducer), 1)
    return ImportCost(
        rows=total,
        sampled=len(sample),
        quality=quality,
        bytes_per_vector={"before": 4 * spec.width, "after": reducer.measure_bytes(spec.dimensions)},
        graph_bytes={
            "before": estimate_float_graph(total, spec.width, spec.m),
            "after": graph.estimate_bytes(total) if graph else 0,
        },
        warning=_find_dropped_lengths(sample, reduced, spec, reducer),
    )


def _measure_recall(before: Vectors, queries: Vectors, after: Vectors, metric: Metric) -> dict[str, float | None]:
    """Return recall@10 of the search of each row for the others, without and with rescoring of 40 candidates.

    Either is None if there are too few rows.
    """
    sides = ((before, before), (queries, after))
    scores = [score_floats(torch.from_numpy(first), torch.from_numpy(second), metric) for first, second in sides]
    # No row is its own neighbour.
    right, found = (part.fill_diagonal_(-torch.inf).argsort(1, descending=True).numpy() for part in scores)

    recalls: dict[str, float | None] = {}
    for name, candidates in (("recall_at_10", 10), ("recall_at_10_rescored_4x", 40)):
        shared = [len(np.intersect1d(best[:10], row[:candidates])) for best, row in zip(right, found, strict=True)]
        recalls[name] = float(np.mean(shared)) / 10 if len(before) > candidates else None
    return recalls


def _find_dropped_lengths(sample: Vectors, reduced: Vectors, spec: IndexSpec, reducer: Reducer) -> str | None:
    """Return a sentence if the metric depends on vector lengths that differ and that the chain drops, else None."""
    lengths = np.linalg.norm(sample, axis=1)
    if spec.metric == "cosine" or not len(sample) or lengths.max() < EQUAL_LENGTHS * lengths.min():
        return None
    some = slice(0, LENGTH_ROWS)
    if not np.allclose(reducer.reduce_documents(2 * sample[some]), reduced[some], atol=1e-5):
        return None
    return (
        f"{spec.chain} drops the lengths of the vectors ({lengths.min():.3g} to {lengths.max():.3g}): the index finds "
        f"by cosine, not by {spec.metric}; --chain none keeps them"
    )
