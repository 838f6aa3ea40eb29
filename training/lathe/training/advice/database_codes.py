"""What databases do by themselves to store a vector in few bytes: RaBitQ, int8, sign bits, and truncated floats."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.transforms.chain import Chain, parse_steps
from lathe.transforms.quality import anchor_blocks
from lathe.transforms.statistics import Moments, Spectrum
from lathe.transforms.vectors import FloatArray

RABITQ = "RaBitQ"
RABITQ_BITS = (1, 2, 3, 4)
"""Compared numbers of bits for each dimension of RaBitQ."""
RABITQ_MULTIPLE = 8
"""Divisor of RaBitQ's number of dimensions, so that the bits of a vector fill whole bytes."""
QUERY_BITS = 8
"""Bits of a query's coordinates in RaBitQ's search. Recall is that of float queries, in a tenth of the time."""
TRUNCATED = {
    "truncated int8": ("truncation:{k},int8", 1),
    "truncated sign bits": ("truncation:{k},binary", 1 / 8),
    "truncated floats": ("truncation:{k}", 4),
}
"""Steps of the methods that keep the first k dimensions, and the bytes of a dimension."""


@dataclass(frozen=True, eq=False)
class DatabaseSearch:
    """Search of n rows among each other, through the codes of one method.

    Attributes:
        method: `RABITQ` or key of `TRUNCATED`.
        setting: what is stored, such as "2 bits of 112 principal axes".
        bytes: bytes of a vector, factors included.
        candidates: the rows found for each row, best first and without itself, `(n, k)`.
    """

    method: str
    setting: str
    bytes: int
    candidates: NDArray[np.int64]


def find_candidates(queries: FloatArray, documents: FloatArray, k: int) -> NDArray[np.int64]:
    """Return the positions of the k documents with the largest inner product with each query, best first, `(n, k)`.
    Queries and documents are the same rows, so that document i is left out for query i.

    Args:
        queries: rows as they search, `(n, m)`.
        documents: the same rows as they are stored, `(n, m)`; n is above k.
        k: number of rows to find.
    """
    query_rows, stored = torch.from_numpy(queries), torch.from_numpy(documents)
    candidates = np.empty((len(queries), k), np.int64)
    # In blocks, because the scores of all queries would be (n, n).
    for rows in anchor_blocks(len(queries)):
        own_columns = torch.arange(rows.start, rows.stop).unsqueeze(1)
        candidates[rows] = (
            (query_rows[rows] @ stored.T).scatter(1, own_columns, -torch.inf).topk(k, dim=1).indices.numpy()
        )

    return candidates


def search_truncated(fit: FloatArray, rows: FloatArray, budget: int, k: int) -> Iterator[DatabaseSearch]:
    """Search rows `(n, d)` among each other with truncated int8, sign bits and floats, and yield a result for each.
    As many of the first dimensions are kept as fit in `budget` bytes.

    Args:
        fit: rows from which ranges are learned, `(m, d)`.
        rows: rows that search each other.
        budget: bytes of a vector.
        k: number of candidates.
    """
    for method, (steps, dimension_bytes) in TRUNCATED.items():
        dimensions = min(int(budget / dimension_bytes), rows.shape[1])
        # Ranges and signs are learned from the rows to fit on, as a database learns them from its first rows.
        chain = Chain(parse_steps(steps.format(k=dimensions))).fit(fit)
        candidates = find_candidates(chain.transform_queries(rows), chain.floats(rows), k)
        stored = chain.bytes_per_vector or 0  # never None: the chain is fitted
        yield DatabaseSearch(method, f"first {dimensions} dimensions", stored, candidates)


def find_rabitq_problem() -> str | None:
    """Return a message why RaBitQ cannot be compared here, or None if it can.
    FAISS must be installed, in a version with RaBitQ of several bits.
    """
    if find_spec("faiss") is None:
        return "faiss is not installed: pip install 'lathe-training[faiss]'"

    import faiss

    try:
        faiss.IndexRaBitQ(RABITQ_MULTIPLE, faiss.METRIC_L2, max(RABITQ_BITS))
    except (AttributeError, TypeError):
        return f"faiss {faiss.__version__} has no RaBitQ of several bits"

    return None


class RaBitQSearch:
    """Search of rows among each other by FAISS's RaBitQ, on as many principal axes as a budget allows.

    Gao and Long 2024 (arXiv 2405.12497), Gao et al. 2025 for several bits (arXiv 2409.09913).

    Args:
        moments: moments of the rows that the principal axes are fitted on.
        rows: rows that search each other, `(n, d)`.
        seed: seed of the rotation of the axes.
    """

    def __init__(self, moments: Moments, rows: FloatArray, seed: int = 0) -> None:
        import faiss

        self._faiss: Any = faiss
        self._seed = seed
        self._done: dict[tuple[int, int, int], DatabaseSearch] = {}
        axes = Spectrum.of(moments.covariance(ddof=0)).directions
        self._rows: FloatArray = ((rows - moments.mean) @ axes.T).astype(np.float32)

    def search(self, budget: int, k: int) -> Iterator[DatabaseSearch]:
        """Yield a search with RaBitQ codes for each number of bits in `RABITQ_BITS`.
        It uses as many principal axes as fit in a budget of bytes.

        Args:
            budget: bytes of a vector.
            k: number of candidates.

        A number of bits of which no code fits is skipped.
        """
        for bits in RABITQ_BITS:
            sizes = range(RABITQ_MULTIPLE, self._rows.shape[1] + 1, RABITQ_MULTIPLE)
            allowed = [size for size in sizes if self._index(size, bits).sa_code_size() <= budget]
            if allowed:
                request = allowed[-1], bits, k
                # All dimensions fit several budgets.
                self._done[request] = self._done.get(request) or self._search(*request)
                yield self._done[request]

    def _index(self, dimensions: int, bits: int) -> Any:
        """Create an empty index of RaBitQ codes."""
        # Squared distances of centred unit vectors order as their inner products do before centring.
        return self._faiss.IndexRaBitQ(dimensions, self._faiss.METRIC_L2, bits)

    def _search(self, dimensions: int, bits: int, k: int) -> DatabaseSearch:
        """Encode the rows as RaBitQ codes, and return the k candidates that each row finds among the others.
        The codes are of the leading principal axes, rotated at random.

        Args:
            dimensions: number of axes.
            bits: bits of a code for each of them.
            k: number of candidates.
        """
        rotation = self._faiss.RandomRotationMatrix(dimensions, dimensions)
        rotation.init(self._seed)
        rows = rotation.apply(np.ascontiguousarray(self._rows[:, :dimensions]))

        index = self._index(dimensions, bits)
        index.qb = QUERY_BITS
        index.train(np.zeros((1, dimensions), np.float32))  # its centroid: the axes start at the mean
        index.add(rows)
        _, rows_found = index.search(rows, k + 1)
        # A row is not its own candidate; where it did not find itself, the last one is dropped.
        columns = np.argsort(rows_found == np.arange(len(rows))[:, None], axis=1, kind="stable")[:, :k]
        setting = f"{bits} {'bit' if bits == 1 else 'bits'} of {dimensions} principal axes"

        return DatabaseSearch(RABITQ, setting, int(index.sa_code_size()), np.take_along_axis(rows_found, columns, 1))
