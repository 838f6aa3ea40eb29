"""Formats of the compact vectors in the rows of a generation: floats, or the codes of the chain.

Exact search compares float queries with either. The codes are never decoded as a whole.
"""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from lathe.service.index.reducer import Reducer, Vectors
from lathe.service.index.spec import IndexSpec
from lathe.training.settings import Metric

DECODED_ROWS = 4096
"""Number of codes that are decoded at once for distances."""


class VectorFormat:
    """Format of compact vectors, the rows that are searched: making, storing and comparing them. Here they are floats.

    Attributes:
        exact_rows: number of rows up to which exact search is as fast as a graph.
        width: numbers of a row.
    """

    file_name = "reduced.f32"
    dtype = "float32"
    exact_rows = 10_000

    def __init__(self, spec: IndexSpec, reducer: Reducer) -> None:
        self.width = spec.dimensions
        self.metric: Metric = spec.metric
        self.reducer = reducer

    def encode(self, originals: Vectors) -> NDArray[Any]:
        """Convert original vectors `(n, d)` to compact rows of `width` numbers.

        Raises:
            BadValueError: if a result is not finite.
        """
        return self.reducer.reduce_documents(originals)

    def decode(self, rows: NDArray[Any]) -> Vectors:
        """Return the float vectors `(n, k)` that rows stand for. For cosine they have length 1."""
        return rows

    def score(self, queries: Tensor, rows: NDArray[Any]) -> Tensor:
        """Return the scores `(q, n)` of reduced queries `(q, k)` with rows: inner products, or negated distances."""
        return score_floats(queries, torch.from_numpy(rows), self.metric)


class CodeFormat(VectorFormat):
    """Byte codes of a chain of transforms that ends in a quantizer."""

    file_name = "codes.u8"
    dtype = "uint8"
    # A code takes 3 µs to be scored by one query, a graph takes as long as for 1,000 of them.
    exact_rows = 1000

    def __init__(self, spec: IndexSpec, reducer: Reducer) -> None:
        assert reducer.quantizer is not None
        super().__init__(spec, reducer)
        self.width = reducer.measure_bytes(spec.dimensions)
        self.quantizer = reducer.quantizer

    def encode(self, originals: Vectors) -> NDArray[Any]:
        """Return the byte codes `(n, b)` of original vectors `(n, d)`."""
        return self.reducer.encode(originals)

    def decode(self, rows: NDArray[Any]) -> Vectors:
        """Return the float vectors `(n, k)` that byte codes `(n, b)` stand for."""
        return self.reducer.decode(rows)

    def score(self, queries: Tensor, rows: NDArray[Any]) -> Tensor:
        """Return the scores `(q, n)` of reduced float queries with byte codes. Higher is nearer.

        For cosine they are divided by the norms of the vectors that the codes stand for. For l2 they are negated
        distances.
        """
        if self.metric == "l2":  # ‖q‖² − 2⟨q, x̂⟩ + ‖x̂‖² would lose all digits far from the origin
            parts = [rows[start : start + DECODED_ROWS] for start in range(0, len(rows), DECODED_ROWS)]
            return torch.cat([score_floats(queries, torch.from_numpy(self.decode(part)), "l2") for part in parts], 1)

        codes = self.reducer.view_codes(rows)
        scores: Tensor = self.quantizer.score(queries, codes)
        if self.metric == "cosine":
            norms = torch.from_numpy(self.quantizer.decoded_norms(codes))
            scores /= norms.masked_fill(norms == 0, 1)  # a zero vector is as far from every query
        return scores


def choose_format(spec: IndexSpec, reducer: Reducer) -> VectorFormat:
    """Return the format of a generation's rows: byte codes for a chain that ends in a quantizer, else floats."""
    return VectorFormat(spec, reducer) if reducer.quantizer is None else CodeFormat(spec, reducer)


def score_floats(queries: Tensor, vectors: Tensor, metric: Metric) -> Tensor:
    """Return the scores `(q, n)` of float queries with float vectors. Higher is nearer.

    They are inner products, or negated Euclidean distances for l2.
    """
    if metric == "l2":  # the faster formula, by products, loses all digits far from the origin
        return -torch.cdist(queries, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    return queries @ vectors.T
