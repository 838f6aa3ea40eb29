"""Lathe's codes and their rivals, each trained on vectors to search others by codes of a number of bytes.

Every stored byte counts, factors and norms included. Queries are floats (asymmetric search) for all methods.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import faiss
import numpy as np
from numpy.typing import NDArray

from lathe.transforms import ProductCoding, TransformCoding

Vectors = NDArray[np.float32]
Ids = NDArray[np.int64]

OPQ_ITERATIONS = 4
"""Iterations of OPQ's rotation, which take most of the benchmark's time."""


RABITQ_BITS, SCALAR_BITS = (1, 2, 3, 4), (4, 6, 8)
"""Bits of a dimension that are tried of RaBitQ and of the scalar quantizer."""


@dataclass(frozen=True)
class Method:
    """A method that searches by codes.

    Attributes:
        name: name in tables.
        budget: bytes allowed for a vector.
        size: bytes it takes.
        search: function of queries `(a, d)` and a number k that returns the ids of the k best vectors, `(a, k)`.
    """

    name: str
    budget: int
    size: int
    search: Callable[[Vectors, int], Ids]


@dataclass(frozen=True)
class Recipe:
    """Methods that are trained together, when they are built.

    Attributes:
        names: names of the methods.
        build: function that trains them and returns them.
    """

    names: tuple[str, ...]
    build: Callable[[], Iterable[Method]]


def fit_lathe_codes(
    train: Vectors, corpus: Vectors, budget: int, name: str, queries: Vectors | None = None, **parameters: object
) -> Method:
    """Fit Lathe's codes on `train` and encode `corpus`.

    Args:
        train: rows to fit on.
        corpus: rows to encode.
        budget: bytes of a code.
        name: name of the method.
        queries: queries that weight the codes; None for none.
        **parameters: parameters of `TransformCoding`.
    """
    step = TransformCoding(budget, **parameters).fit(train, queries=queries)  # type: ignore[arg-type]
    codes = step.transform(corpus)
    return Method(name, budget, codes.shape[1], lambda asked, k: rank_best(step.score(asked, codes), k))


def fit_product_codes(train: Vectors, corpus: Vectors, budget: int, name: str, weighting: float = 0.5) -> Method:
    """Fit Lathe's codes with learned codebooks on `train` and encode `corpus`."""
    step = ProductCoding(budget, weighting).fit(train)
    codes = step.transform(corpus)
    return Method(name, budget, codes.shape[1], lambda asked, k: rank_best(step.score(asked, codes), k))


def fit_code_prefix(train: Vectors, corpus: Vectors, budget: int, name: str) -> Method:
    """Fit Lathe's codes for twice the budget, and search by the first half of their bytes."""
    whole = TransformCoding(2 * budget, weighting=0.5).fit(train)
    step, codes = whole.shorten(budget), np.ascontiguousarray(whole.transform(corpus)[:, :budget])
    return Method(name, budget, codes.shape[1], lambda asked, k: rank_best(step.score(asked, codes), k))


OPQ_NAMES = ("OPQ+PQ", "OPQ+PQ, decoded vectors normalized")
"""Names of the methods that `opq` trains together."""


def count_opq_dimensions(dimensions: int, budget: int) -> int:
    """Return the dimensions of OPQ's rotation, a multiple of `budget`.

    They are rounded down, which finds more, unless that would drop more than a tenth of the dimensions.
    """
    fewer = dimensions // budget * budget
    return fewer if fewer >= 0.9 * dimensions else fewer + budget


def train_opq(train: Vectors, corpus: Vectors, budget: int, seed: int) -> Iterator[Method]:
    """Train FAISS's OPQ and PQ with a byte for each subquantizer.

    Yields:
        The method as it is, and the method with its decoded vectors normalized.
    """
    width = count_opq_dimensions(train.shape[1], budget)
    rotation = faiss.OPQMatrix(train.shape[1], budget, width)
    rotation.niter = OPQ_ITERATIONS
    quantizer = faiss.IndexPQ(width, budget, 8, faiss.METRIC_INNER_PRODUCT)
    # 1234 is FAISS's own default.
    quantizer.pq.cp.seed = 1234 + seed
    index = faiss.IndexPreTransform(rotation, quantizer)
    index.train(train)
    decoded = index.sa_decode(index.sa_encode(corpus))
    for name, vectors in zip(OPQ_NAMES, (decoded, normalize_rows(decoded)), strict=True):
        yield Method(name, budget, quantizer.code_size, _search_decoded(vectors))


def _search_decoded(decoded: Vectors) -> Callable[[Vectors, int], Ids]:
    """Return a search by inner products with decoded vectors."""
    return lambda asked, k: rank_best(asked @ decoded.T, k)


RESIDUAL = "residual quantizer"


def train_residual(train: Vectors, corpus: Vectors, budget: int, seed: int) -> Method:
    """Train FAISS's residual quantizer with a byte for each stage, and search the decoded vectors."""
    quantizer = faiss.ResidualQuantizer(train.shape[1], budget, 8)
    quantizer.cp.seed = 1234 + seed
    quantizer.train(train)
    decoded = quantizer.decode(quantizer.compute_codes(corpus))
    return Method(RESIDUAL, budget, budget, _search_decoded(decoded))


def name_rabitq(bits: int) -> str:
    """Return the name of RaBitQ of so many bits for each dimension."""
    return f"PCA, RaBitQ of {bits} bits"


def name_scalar(bits: int) -> str:
    """Return the name of FAISS's scalar quantizer of so many bits for each dimension."""
    return f"PCA, {bits}-bit integers"


def count_rabitq_dimensions(dimensions: int, budget: int, bits: int) -> int:
    """Return the largest number of dimensions, a multiple of 8, whose RaBitQ codes fit a budget.

    The result is 0 if none does.
    """
    sizes = (k for k in range(8, dimensions + 1, 8) if _rabitq_size(k, bits) <= budget)
    return max(sizes, default=0)


def train_rabitq(train: Vectors, corpus: Vectors, budget: int, bits: int) -> Method:
    """Train FAISS's PCA, a random rotation and RaBitQ of `bits` bits on as many dimensions as the budget allows."""
    k = count_rabitq_dimensions(train.shape[1], budget, bits)
    quantizer = faiss.IndexRaBitQ(k, faiss.METRIC_L2, bits)
    quantizer.qb = 0  # queries stay floats
    # L2 distances of centred unit vectors order as their inner products; FAISS's PCA subtracts the mean.
    index = faiss.IndexPreTransform(faiss.PCAMatrix(train.shape[1], k, 0, True), quantizer)
    return _faiss_method(name_rabitq(bits), index, train, corpus, budget, _rabitq_size(k, bits))


def count_scalar_dimensions(budget: int, bits: int) -> int:
    """Return the number of dimensions of `bits` bits that fill a budget."""
    return 8 * budget // bits


def train_scalar(train: Vectors, corpus: Vectors, budget: int, bits: int) -> Method:
    """Train FAISS's PCA and its scalar quantizer of 4, 6 or 8 bits on as many dimensions as the budget allows."""
    k = count_scalar_dimensions(budget, bits)
    kind = {4: faiss.ScalarQuantizer.QT_4bit, 6: faiss.ScalarQuantizer.QT_6bit, 8: faiss.ScalarQuantizer.QT_8bit}[bits]
    index = faiss.IndexPreTransform(
        faiss.PCAMatrix(train.shape[1], k, 0, False), faiss.IndexScalarQuantizer(k, kind, faiss.METRIC_L2)
    )
    return _faiss_method(name_scalar(bits), index, train, corpus, budget, budget)


TRUNCATION = "truncation, int8"


def train_truncation(train: Vectors, corpus: Vectors, budget: int) -> Method:
    """Keep the first dimensions in int8, one byte for each, and compare by cosine."""
    quantizer = faiss.IndexScalarQuantizer(budget, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    quantizer.train(normalize_rows(train[:, :budget]))
    decoded = quantizer.sa_decode(quantizer.sa_encode(normalize_rows(corpus[:, :budget])))
    return Method(
        TRUNCATION, budget, budget, lambda asked, k: rank_best(normalize_rows(asked[:, :budget]) @ decoded.T, k)
    )


def fit_pca_floats(train: Vectors, corpus: Vectors, dimensions: int) -> Method:
    """Project on uncentred principal axes and keep floats, as `lathe fit --steps pca:K,center=none` does."""
    axes = np.linalg.svd(train[:20_000], full_matrices=False)[2][:dimensions].T
    small = normalize_rows(corpus @ axes)
    return Method(
        f"{dimensions} PCA floats",
        4 * dimensions,
        4 * dimensions,
        lambda asked, k: rank_best(asked @ axes @ small.T, k),
    )


def _faiss_method(name: str, index: "faiss.Index", train: Vectors, corpus: Vectors, budget: int, size: int) -> Method:
    """Train a FAISS index, add the corpus, and return its search."""
    index.train(train)
    index.add(corpus)
    return Method(name, budget, size, lambda asked, k: index.search(asked, k)[1])


def _rabitq_size(dimensions: int, bits: int) -> int:
    """Return the bytes of a RaBitQ code, factors included."""
    return int(faiss.IndexRaBitQ(dimensions, faiss.METRIC_L2, bits).sa_code_size())


def normalize_rows(rows: Vectors) -> Vectors:
    """Return rows of norm 1, contiguous."""
    return np.ascontiguousarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), np.float32)


def rank_best(scores: NDArray[np.floating], k: int) -> Ids:
    """Return the columns of the k largest scores of each row, best first."""
    k = min(k, scores.shape[1])
    top = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, top, 1), axis=1, kind="stable")
    return np.take_along_axis(top, order, 1)


def name_family(name: str) -> str:
    """Return a method's name without its number of bits.

    Of a family only the best member counts.
    """
    return re.sub(r" of \d bits|\d-bit ", "", name)
