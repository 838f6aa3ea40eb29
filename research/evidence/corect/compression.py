"""Compressions of vectors: those of CoRECT, GeoPres, and Lathe's codes.

As in CoRECT, queries are compressed like documents and compared by cosine, or by Hamming distance if a dimension is a
bit; only codes are searched with float queries. All are fitted on the same vectors.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.codes.methods import normalize_rows
from lathe.transforms import Chain, ProductCoding, TransformCoding, parse_steps

Vectors = NDArray[np.float32]

SHARES = (2, 4, 8, 16)
"""Original dimensions divided by those that are left."""
LSH_FACTORS = (4, 8, 16, 32)
"""Factors by which locality-sensitive hashing compresses."""
CLIP_PERCENT = 2.5
"""Per cent of a dimension's values at each end that equal-distance binning clips, as in CoRECT."""
OCTET = 8
"""Bits of a byte."""
FLOATS = "float32"
"""Name of the vectors as they are."""
SEED = 0

Compress = Callable[[Vectors], Vectors]
"""Function of vectors `(n, d)` that returns what is compared by inner products."""


@dataclass(frozen=True)
class Compression:
    """Fitted compression.

    Attributes:
        name: name in tables.
        family: name shared by the same method at several sizes.
        size: bytes of a vector.
        documents: compresses documents to rows that are compared by inner products.
        queries: the same for queries.
    """

    name: str
    family: str
    size: int
    documents: Compress
    queries: Compress


def fit_compressions(rows: Vectors) -> Iterator[Compression]:
    """Fit every compression on unit vectors `(n, d)` and yield it.

    The first one is the vectors as they are.
    """
    dimensions = rows.shape[1]
    yield _alike(FLOATS, "casting", 4 * dimensions, lambda vectors: vectors)
    for dtype, octets in ((torch.float16, 2), (torch.bfloat16, 2), (torch.float8_e4m3fn, 1)):
        yield _alike(str(dtype).partition(".")[2], "casting", octets * dimensions, _cast(dtype))
    for share in SHARES:
        yield _alike(f"truncation to 1/{share}", "truncation", 4 * dimensions // share, _cut(dimensions // share))
        for label, steps in (("PCA", "pca:{k}"), ("GeoPres", "geopres:{k}")):
            chain = Chain(parse_steps(steps.format(k=dimensions // share))).fit(rows)
            yield _alike(f"{label} to 1/{share}", label, 4 * dimensions // share, chain.transform)
    for bits in (8, 4, 2):
        size = dimensions * bits // OCTET
        yield _alike(f"equal distance, {bits} bits", "equal distance", size, bin_equally(rows, bits))
        yield _alike(f"percentiles, {bits} bits", "percentiles", size, bin_by_percentiles(rows, bits))
    for name, thresholds in (("zero", np.zeros(dimensions)), ("median", np.median(rows, axis=0))):
        yield _alike(f"binary, {name}", "binary", dimensions // OCTET, _binarize(thresholds.astype(np.float32)))
    for factor in LSH_FACTORS:
        bits = 32 * dimensions // factor
        yield _alike(f"LSH, {bits} bits", "LSH", bits // OCTET, _hash(dimensions, bits))
    for share, bits in ((1, 8), (2, 8), (OCTET, 8), (1, 2), (2, 2), (OCTET, 2)):
        parts = dimensions // share
        yield _alike(
            f"PQ, {parts} × {bits} bits", "PQ", parts * bits // OCTET, fit_product_quantizer(rows, parts, bits)
        )
    for share in SHARES:
        step = TransformCoding(dimensions // share, weighting=0.5).fit(rows)
        yield _codes(f"codes:{step.bytes}", "codes", step)
    for share in SHARES[1:]:
        learned = ProductCoding(dimensions // share, weighting=0.5).fit(rows)
        yield _codes(f"product_codes:{learned.bytes}", "product_codes", learned)


def _alike(name: str, family: str, size: int, compress: Compress) -> Compression:
    """Return a compression that is the same for queries and documents.

    Its outputs are made unit vectors.
    """

    def unit(vectors: Vectors) -> Vectors:
        """Return compressed vectors of norm 1."""
        return normalize_rows(compress(vectors))

    return Compression(name, family, size, unit, unit)


def _codes(name: str, family: str, step: TransformCoding) -> Compression:
    """Return a compression by codes, which decode to the vectors that float queries are compared with."""

    def decode(vectors: Vectors) -> Vectors:
        """Return the vectors that the codes stand for."""
        found: Vectors = step.inverse_transform(step.transform(vectors))
        return found

    return Compression(name, family, step.bytes, decode, lambda queries: queries)


def _cast(dtype: torch.dtype) -> Compress:
    """Return a function that rounds vectors to a type of floats."""
    return lambda vectors: torch.from_numpy(vectors).to(dtype).float().numpy()


def _cut(k: int) -> Compress:
    """Return a function that keeps the first k dimensions."""
    return lambda vectors: vectors[:, :k]


def _binarize(thresholds: Vectors) -> Compress:
    """Return a function that gives 1 or −1 by a threshold for each dimension: cosines order as Hamming distances do."""
    return lambda vectors: np.where(vectors > thresholds, np.float32(1), np.float32(-1))


def _hash(dimensions: int, bits: int) -> Compress:
    """Return a function that gives 1 or −1 by the signs of random projections."""
    directions = np.random.default_rng(SEED).standard_normal((dimensions, bits), dtype=np.float32)
    return lambda vectors: np.where(vectors @ directions > 0, np.float32(1), np.float32(-1))


def bin_equally(rows: Vectors, bits: int) -> Compress:
    """Return a function that gives the number of a value's bin: bins of one width between clipped ends, by dimension.

    Bins are numbered around zero, as in CoRECT. Values beyond the ends get the outermost bins, so that `bits` suffice.
    """
    low, high = np.percentile(rows, [CLIP_PERCENT, 100 - CLIP_PERCENT], axis=0).astype(np.float32)
    width = (high - low) / (2**bits - 1)
    half = 2 ** (bits - 1)
    return lambda vectors: np.clip(np.floor((vectors - low) / width) - half, -half, half - 1)


def bin_by_percentiles(rows: Vectors, bits: int) -> Compress:
    """Return a function that gives the number of a value's bin, from 0: bins hold as many values each, by dimension."""
    edges = np.percentile(rows, np.linspace(0, 100, 2**bits + 1)[1:-1], axis=0)

    def number(vectors: Vectors) -> Vectors:
        """Return the bin of each value."""
        columns = [np.searchsorted(edges[:, place], vectors[:, place]) for place in range(vectors.shape[1])]
        return np.stack(columns, axis=1).astype(np.float32)

    return number


def fit_product_quantizer(rows: Vectors, parts: int, bits: int) -> Compress:
    """Train FAISS's product quantizer with one codebook for all parts, as in CoRECT.

    Returns:
        Its rounding of vectors.
    """
    quantizer: Any = faiss.ProductQuantizer(rows.shape[1], parts, bits)
    quantizer.train_type = quantizer.Train_shared
    quantizer.train(rows)
    return lambda vectors: quantizer.decode(quantizer.compute_codes(np.ascontiguousarray(vectors)))
