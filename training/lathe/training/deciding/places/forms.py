"""Forms in which places store vectors, and the scores of a search through vectors in these forms."""

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.training.errors import AdviceError
from lathe.training.settings import Metric
from lathe.transforms.chain import Chain, parse_steps
from lathe.transforms.quality.store_codes import TurboQuantizer, round_between
from lathe.transforms.statistics import unit_rows
from lathe.transforms.vectors import FloatArray

Element = Literal[
    "float32",
    "float16",
    "int8",
    "int4",
    "range8",
    "range7",
    "sq8",
    "bit",
    "bit_centred",
    "rabitq",
    "turbo",
    "turbo_scaled",
    "turbo_both",
    "pq",
    "codes",
]
"""Data type of a stored vector.

float32, float16  numbers
int8, int4        whole numbers of 8 or 4 bits, on one scale for all coordinates, between two quantiles of coordinates
range8            whole numbers of 8 bits, on one scale between the smallest and the largest coordinate
range7            like range8 with 7 bits in a byte; queries are rounded too
sq8               whole numbers of 8 bits, on a scale for each coordinate
bit               signs of vectors, searched by the signs of queries
bit_centred       like bit, after the mean of the rows is subtracted from rows and queries
rabitq            codes of RaBitQ, of `bits` bits a coordinate: centred, rotated, with a factor for each vector
turbo             codes of TurboQuant, of `bits` bits a coordinate: rotated, with a factor for each vector
turbo_scaled      like turbo, with rotated coordinates that are centred and scaled first
turbo_both        like turbo, with queries that are encoded too
pq, codes         codes of a product quantizer, byte codes of Lathe
"""

ELEMENT_BITS = {"float32": 32, "float16": 16, "int8": 8, "int4": 4, "range8": 8, "range7": 8, "sq8": 8}
"""Bits of a coordinate by element. For other elements, `StoredForm.bits` has the number."""
PQ_BITS = 8
"""Bits of the code of a subvector in a product quantizer."""
MIN_PQ_ROWS = 39 * 2**PQ_BITS
"""Minimum number of rows on which a product quantizer is fitted, as FAISS recommends. Fitted on fewer rows, the
quantizer stores these rows better than others: recall among 2,000 rows was up to .1 higher than among all rows."""
MIN_LIST_ROWS = 39
"""Minimum number of rows for each list of an inverted file, as FAISS recommends."""
MAX_FIT_ROWS = 20_000
"""Maximum number of rows on which reductions and codes are fitted."""


@dataclass(frozen=True)
class StoredForm:
    """Form of a stored vector.

    Attributes:
        element: data type of the vector.
        dimensions: number of stored dimensions.
        steps: steps that reduce the dimensions before storage, as for `lathe fit --steps`; empty to store all
            dimensions.
        code_bytes: bytes of a code, for `pq` and `codes`.
        bits: bits of a coordinate, for `rabitq` and `turbo`.
        lists: number of lists of an inverted file, whose centroids are subtracted from the list's vectors, for
            `rabitq`.
        rotation: steps that rotate all vectors before storage, as for `lathe fit --steps`; empty for no rotation. A
            rotation keeps inner products and cosines, so that full vectors are stored rotated too.
    """

    element: Element
    dimensions: int
    steps: str = ""
    code_bytes: int = 0
    bits: float = 1
    lists: int = 1
    rotation: str = ""

    @property
    def chain_steps(self) -> str:
        """Steps of the chain that produces this form, for `lathe fit --steps`. Empty if the place needs no chain."""
        return f"codes:{self.code_bytes}" if self.element == "codes" else self.steps or self.rotation

    @property
    def bytes(self) -> int:
        """Bytes of a vector in this form, without additions of a place."""
        if self.element in ("pq", "codes"):
            return self.code_bytes
        return int(np.ceil(ELEMENT_BITS.get(self.element, self.bits) * self.dimensions / 8))


class FormSearch:
    """Searches of queries among rows, with the rows stored in any form.

    Args:
        rows: vectors to search, `(n, d)`. Reductions and quantizers are fitted on these rows.
        queries: query vectors, `(q, d)`.
        metric: how vectors are compared. For `cosine`, rows and queries are normalized first.
    """

    def __init__(self, rows: FloatArray, queries: FloatArray, metric: Metric) -> None:
        self.metric = metric
        self.rows, self.queries = (self._prepare(vectors) for vectors in (rows, queries))
        self._transformed: dict[str, tuple[FloatArray, FloatArray]] = {"": (self.rows, self.queries)}

    @cached_property
    def exact(self) -> NDArray[np.float32]:
        """Exact scores of all rows for all queries, `(q, n)`, higher for nearer rows."""
        return self._compare(self.rows, self.queries)

    def _prepare(self, vectors: FloatArray) -> FloatArray:
        tensor = torch.from_numpy(np.array(vectors, np.float32))
        prepared: NDArray[np.float32] = (unit_rows(tensor) if self.metric == "cosine" else tensor).numpy()
        return prepared

    def score(self, form: StoredForm) -> NDArray[np.float32]:
        """Fit a form's quantizers on the rows, and return the scores `(q, n)` of all rows. Too few rows for PQ raise.

        Higher scores are nearer.

        Raises:
            TransformError: if the reduction of the form cannot be fitted on these rows.
            AdviceError: if there are fewer than `MIN_PQ_ROWS` rows for a product quantizer, or FAISS is needed and not
                installed.
        """
        if form.element == "pq" and len(self.rows) < MIN_PQ_ROWS:
            raise AdviceError(
                f"a product quantizer takes {MIN_PQ_ROWS:,} rows to fit, and the sample has {len(self.rows):,}"
            )
        if form.element in ("rabitq", "pq") and find_spec("faiss") is None:
            raise AdviceError("this form is computed by faiss: pip install 'lathe-training[faiss]'")

        rows, queries = self.transform(form.steps or form.rotation)
        if form.element == "codes":
            chain = self._fit(f"codes:{form.code_bytes}", rows)
            return self._compare(chain.floats(rows), chain.transform_queries(queries))
        if form.element == "rabitq":
            return _score_rabitq(rows, queries, int(form.bits), form.lists, self.metric)
        if form.element in ("bit", "bit_centred"):
            threshold = rows.mean(axis=0) if form.element == "bit_centred" else np.float32(0)
            signs = [np.where(vectors > threshold, np.float32(1), np.float32(-1)) for vectors in (queries, rows)]
            return np.asarray(signs[0] @ signs[1].T, np.float32)
        return self._compare(*_store(form, rows, queries))

    def transform(self, steps: str) -> tuple[FloatArray, FloatArray]:
        """Fit a chain of transforms with these steps on the rows, and return the transformed `(rows, queries)`.

        The result is cached by steps. Empty steps return rows and queries unchanged.
        """
        if steps not in self._transformed:
            chain = self._fit(steps, self.rows)
            self._transformed[steps] = chain.floats(self.rows), chain.transform_queries(self.queries)
        return self._transformed[steps]

    def _fit(self, steps: str, rows: FloatArray) -> Chain:
        return Chain(parse_steps(steps), normalize=self.metric == "cosine").fit(rows[:MAX_FIT_ROWS])

    def _compare(self, stored: FloatArray, queries: FloatArray) -> NDArray[np.float32]:
        products: NDArray[np.float32] = (torch.from_numpy(queries) @ torch.from_numpy(stored).T).numpy()
        if self.metric == "l2":
            # −‖x − q‖² without ‖q‖², which is the same for all rows of a query.
            products = (2 * products - (stored**2).sum(axis=1)).astype(np.float32)
        return products


def _store(form: StoredForm, rows: FloatArray, queries: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Quantize and decode rows as a form stores them, and round, rotate or encode the queries if the form does.

    Queries are rounded for `range7`, rotated for `turbo` and `turbo_scaled`, and encoded for `turbo_both`. Rows are
    unchanged for `float32`.
    """
    match form.element:
        case "float16":
            return rows.astype(np.float16).astype(np.float32), queries
        case "sq8":
            return round_between(rows, rows.min(axis=0), rows.max(axis=0), 255), queries
        case "pq":
            return _encode_by_product_quantizer(rows, form.code_bytes), queries
        case "int8" | "int4":
            # As in Elasticsearch, a share of 1 in d + 1 of the coordinates is clipped, half of it on each side.
            outside = 0.5 / (rows.shape[1] + 1)
            low, high = np.quantile(rows, [outside, 1 - outside])
            return round_between(rows, low, high, 255 if form.element == "int8" else 15), queries
        case "range8":
            return round_between(rows, rows.min(), rows.max(), 255), queries
        case "range7":
            low, high = rows.min(), rows.max()
            return round_between(rows, low, high, 127), round_between(queries, low, high, 127)
        case "turbo" | "turbo_scaled" | "turbo_both":
            quantizer = TurboQuantizer(rows, form.bits, scaled=form.element == "turbo_scaled")
            searching = quantizer.encode(queries) if form.element == "turbo_both" else quantizer.rotate(queries)
            return quantizer.encode(rows), searching
    return rows, queries


def _encode_by_product_quantizer(vectors: FloatArray, code_bytes: int) -> FloatArray:
    """Fit FAISS's product quantizer on vectors `(n, d)`, and return the vectors encoded and decoded again."""
    import faiss

    quantizer: Any = faiss.ProductQuantizer(vectors.shape[1], code_bytes, PQ_BITS)
    quantizer.train(vectors[:MAX_FIT_ROWS])
    return np.asarray(quantizer.decode(quantizer.compute_codes(np.ascontiguousarray(vectors))), np.float32)


def _score_rabitq(rows: FloatArray, queries: FloatArray, bits: int, lists: int, metric: Metric) -> NDArray[np.float32]:
    """Compute scores `(q, n)`, higher for nearer rows, through FAISS's RaBitQ codes. Few rows get fewer `lists`.

    There is at most one list for every `MIN_LIST_ROWS` rows, because with more the centroids would fit the sample
    better than other rows. Vectors are rotated at random, and the centroid of their list is subtracted.
    """
    import faiss

    lists = max(1, min(lists, len(rows) // MIN_LIST_ROWS))
    kind = f"RR{rows.shape[1]},IVF{lists},RaBitQ{bits if bits > 1 else ''}"
    by_product = metric == "ip"
    faiss_metric = faiss.METRIC_INNER_PRODUCT if by_product else faiss.METRIC_L2
    index: Any = faiss.index_factory(rows.shape[1], kind, faiss_metric)
    index.train(rows)
    index.add(rows)
    parameters: Any = faiss.ParameterSpace()
    parameters.set_index_parameter(index, "nprobe", lists)
    ranked, ranked_rows = index.search(np.ascontiguousarray(queries), len(rows))
    scores = np.full((len(queries), len(rows)), -np.inf, np.float32)
    np.put_along_axis(scores, ranked_rows, ranked if by_product else -ranked, axis=1)

    return scores
