"""Lathe's codes and FAISS's quantizers, each fitted on vectors to search others by codes of a number of bytes.

Every stored byte counts, factors and norms included; ids do not. Queries are floats for all methods.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from lathe.transforms import ProductCoding, TransformCoding

Vectors = NDArray[np.float32]
Ids = NDArray[np.int64]
Search = Callable[[Vectors, int], Ids]
"""Function of queries `(a, d)` and a number k that returns the ids of the k best rows, best first, `(a, k)`."""
Projection = Callable[[Vectors], Vectors]
"""Function that maps queries `(a, d)` to the dimensions of the rows that they search, `(a, k)`."""


class Built(NamedTuple):
    """A fitted method: its family (a line of the tables), its setting, the bytes of a vector, and its search."""

    family: str
    setting: str
    size: int
    search: Search


@dataclass(frozen=True)
class Recipe:
    """Methods that are fitted together.

    Attributes:
        name: name that no other recipe of a budget has.
        build: function of the rows to fit on and those to search that yields the fitted methods.
        slow: whether fitting takes a minute.
    """

    name: str
    build: Callable[[Vectors, Vectors], Iterable[Built]]
    slow: bool = False


OURS, WEIGHTED, PRODUCT = "`codes`, λ = 0", "`codes`, λ = 0.5", "`product_codes`, λ = 0"
ONE_BIT, TWO_BITS = "`codes`, one bit for each rotated axis", "`codes`, two bits for each rotated axis"
"""Families of our codes."""
NOT_ADJUSTED = ", levels not adjusted"
"""End of the name of a family that is encoded without the adjustment of levels."""

OPQ_NAMES = ("FAISS OPQ", "FAISS OPQ, decoded vectors normalized")
"""Families that `train_opq` trains together."""
OPQ_ITERATIONS = 4
"""Iterations of OPQ's rotation. 50, which is FAISS's default, take ten times as long and find no more."""
MAX_ADDITIVE_BYTES = 24
"""Largest budget of the additive quantizers: beyond it, one of them trains for more than a minute."""


def list_recipes(dimensions: int, budget: int) -> Iterator[Recipe]:
    """Yield our codes and FAISS's methods at a budget of bytes for vectors of some dimensions."""
    for name, kind, weighting in (
        (OURS, TransformCoding, 0),
        (WEIGHTED, TransformCoding, 0.5),
        (PRODUCT, ProductCoding, 0),
    ):
        for end, adjusted in (("", True), (NOT_ADJUSTED, False)):
            parameters = {"kind": kind, "weighting": weighting, "adjust_levels": adjusted}
            yield Recipe(name + end, partial(_fit_ours, name + end, budget, parameters))
    for bits, name in ((1, ONE_BIT), (2, TWO_BITS)):
        size = min(budget, dimensions * bits // 8)
        yield Recipe(name, partial(_fit_ours, name, size, {"bits": bits, "rotation": "random"}))
    yield Recipe("OPQ", lambda train, corpus: train_opq(train, corpus, budget, 0))
    for bits in (1, 2, 3, 4):
        yield Recipe(f"FAISS RaBitQ {bits}", partial(_train_rabitq, budget, bits))
        yield Recipe(f"FAISS TurboQuant {bits}", partial(_train_turboquant, budget, bits))
    yield Recipe("truncation", partial(_truncate, budget))
    if budget <= MAX_ADDITIVE_BYTES:
        # Eight parts divide the dimensions of all encoders.
        additive: dict[str, Callable[[], Any]] = {
            "FAISS residual quantizer": partial(faiss.ResidualQuantizer, dimensions, budget, 8),
            "FAISS product residual quantizer": partial(faiss.ProductResidualQuantizer, dimensions, 8, budget // 8, 8),
            "FAISS local-search quantizer": partial(faiss.ProductLocalSearchQuantizer, dimensions, 8, budget // 8, 8),
        }
        for name, create in additive.items():
            yield Recipe(name, partial(_train_additive, name, budget, create), slow=True)


def fit_lathe_codes(
    train: Vectors, corpus: Vectors, budget: int, kind: Any = TransformCoding, **parameters: object
) -> Built:
    """Fit Lathe's codes on `train` and encode `corpus`."""
    step = kind(budget, **parameters).fit(train)
    codes = step.transform(corpus)
    return Built(step.kind, "", codes.shape[1], lambda asked, k: rank_best(step.score(asked, codes), k))


def _fit_ours(name: str, size: int, parameters: dict[str, Any], train: Vectors, corpus: Vectors) -> Iterator[Built]:
    yield fit_lathe_codes(train, corpus, size, **parameters)._replace(family=name)


def _search_rows(rows: Vectors, project: Projection) -> Search:
    """Return the search of rows by inner products with projected queries."""
    return lambda asked, k: rank_best(project(asked) @ rows.T, k)


def _search_decoded(families: tuple[str, str], size: int, decoded: Vectors) -> Iterator[Built]:
    """Yield the search of decoded vectors as they are, and normalized."""
    for name, rows in zip(families, (decoded, normalize_rows(decoded)), strict=True):
        yield Built(name, "", size, _search_rows(rows, np.asarray))


def train_opq(train: Vectors, corpus: Vectors, budget: int, seed: int) -> Iterator[Built]:
    """Train FAISS's OPQ and PQ with a byte for each subquantizer.

    The dimensions of the rotation must be a multiple of the bytes. They are rounded down, which finds more, unless that
    would drop more than a tenth.
    """
    dimensions = train.shape[1]
    fewer = dimensions // budget * budget
    width = fewer if fewer >= 0.9 * dimensions else fewer + budget
    rotation = faiss.OPQMatrix(dimensions, budget, width)
    rotation.niter = OPQ_ITERATIONS
    quantizer = faiss.IndexPQ(width, budget, 8, faiss.METRIC_INNER_PRODUCT)
    quantizer.pq.cp.seed = 1234 + seed  # FAISS's own default is 1234
    index = faiss.IndexPreTransform(rotation, quantizer)
    index.train(train)
    yield from _search_decoded(OPQ_NAMES, budget, index.sa_decode(index.sa_encode(corpus)))


def _train_additive(
    name: str, budget: int, create: Callable[[], Any], train: Vectors, corpus: Vectors
) -> Iterator[Built]:
    """Train one of FAISS's additive quantizers with 8 bits a stage, and search the decoded vectors."""
    quantizer = create()
    quantizer.train(train)
    yield from _search_decoded((name, f"{name}, normalized"), budget, quantizer.decode(quantizer.compute_codes(corpus)))


def prepare(train: Vectors, corpus: Vectors, dimensions: int) -> tuple[Vectors, Vectors, Projection, Vectors]:
    """Subtract the mean of `train` and project on its leading principal axes.

    Inner products of projected queries with projected rows order as those of the vectors, as far as the axes reach.

    Returns:
        Both arrays projected, `(n, k)` and `(m, k)`, the projection of queries, and the mean along the axes `(k,)`.
    """
    mean = train.mean(axis=0)
    axes = np.linalg.eigh(np.cov(train.T))[1][:, ::-1][:, :dimensions].astype(np.float32)
    rows, others = (np.ascontiguousarray((vectors - mean) @ axes) for vectors in (train, corpus))
    return rows, others, lambda asked: np.ascontiguousarray(asked @ axes), mean @ axes


def find_dimensions(dimensions: int, budget: int, multiple: int, size_of: Callable[[int], int]) -> int:
    """Return the largest number of dimensions, a multiple of `multiple`, whose codes fit a budget.

    Return 0 if none does.
    """
    return max((k for k in range(multiple, dimensions + 1, multiple) if size_of(k) <= budget), default=0)


def _train_rabitq(budget: int, bits: int, train: Vectors, corpus: Vectors) -> Iterator[Built]:
    """Train a random rotation and RaBitQ on as many principal axes as the budget allows, for both of its metrics."""

    def size_of(dimensions: int) -> int:
        return int(faiss.IndexRaBitQ(dimensions, faiss.METRIC_L2, bits).sa_code_size())

    if k := find_dimensions(train.shape[1], budget, 8, size_of):
        rows, others, project, mean = prepare(train, corpus, k)
        for name, metric, origin in (
            ("L2", faiss.METRIC_L2, mean),  # distances of unit vectors order as their inner products
            ("inner product", faiss.METRIC_INNER_PRODUCT, np.zeros(k, np.float32)),
        ):
            quantizer = faiss.IndexRaBitQ(k, metric, bits)
            quantizer.qb = 0  # queries stay floats
            index = faiss.IndexPreTransform(faiss.RandomRotationMatrix(k, k), quantizer)
            index.train(rows)
            index.add(others)
            search = partial(_search_index, index, project, origin)
            yield Built("FAISS RaBitQ", f"{bits} bits, {k} axes, {name}", size_of(k), search)


def _search_index(index: Any, project: Projection, origin: Vectors, asked: Vectors, k: int) -> Ids:
    """Search an index by projected queries, from which an origin is subtracted."""
    return np.asarray(index.search(project(asked) - origin, k)[1])


def _train_turboquant(budget: int, bits: int, train: Vectors, corpus: Vectors) -> Iterator[Built]:
    """Train a random rotation and TurboQuant on as many principal axes as the budget allows.

    FAISS stores no norm with these codes, and its levels suit unit vectors, so one factor for all rows gives them such
    norms. Nobody ships the second method, which restores the norm of each vector as our codes do: by the factor f > 0
    that makes |μ + f·r| = 1.
    """
    kind = getattr(faiss.ScalarQuantizer, f"QT_{bits}bit_tqmse")
    k = find_dimensions(train.shape[1], budget, 8, lambda k: k * bits // 8)
    rows, others, project, mean = prepare(train, corpus, k)
    quantizer = faiss.IndexScalarQuantizer(k, kind, faiss.METRIC_INNER_PRODUCT)
    index = faiss.IndexPreTransform(faiss.RandomRotationMatrix(k, k), quantizer)
    scale = np.sqrt((rows**2).sum(axis=1).mean())
    index.train(rows / scale)
    decoded = index.sa_decode(index.sa_encode(others / scale))

    squares, along = (decoded**2).sum(axis=1), decoded @ mean
    rest = 1 - float((train.mean(axis=0) ** 2).sum())
    factors = (np.sqrt(along**2 + squares * rest) - along) / squares
    for name, rows in (
        ("FAISS TurboQuant", decoded),
        ("FAISS TurboQuant, norms restored (nobody ships it)", decoded * factors[:, None]),
    ):
        yield Built(name, f"{bits} bits, {k} axes", quantizer.sa_code_size(), _search_rows(rows, project))


def _truncate(budget: int, train: Vectors, corpus: Vectors) -> Iterator[Built]:
    """Keep the first dimensions in int8, one byte for each, and compare by cosine."""
    quantizer = faiss.IndexScalarQuantizer(budget, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    quantizer.train(normalize_rows(train[:, :budget]))
    decoded = quantizer.sa_decode(quantizer.sa_encode(normalize_rows(corpus[:, :budget])))
    yield Built("first dimensions as int8", "", budget, _search_rows(decoded, lambda asked: asked[:, :budget]))


def normalize_rows(rows: Vectors) -> Vectors:
    """Return rows of norm 1, contiguous."""
    return np.ascontiguousarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), np.float32)


def rank_best(scores: NDArray[np.floating], k: int) -> Ids:
    """Return the columns of the k largest scores of each row, best first."""
    k = min(k, scores.shape[1])
    top = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, top, 1), axis=1, kind="stable")
    return np.take_along_axis(top, order, 1)
