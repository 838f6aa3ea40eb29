"""A collection of Qdrant as a checkup reads and searches it."""

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lathe.service.errors import BadValueError, NotSupportedError
from lathe.training.checkup.store import Hits, Metric, Rows
from lathe.transforms.vectors import FloatArray

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

METRICS: dict[str, Metric] = {"Cosine": "cosine", "Dot": "ip", "Euclid": "l2"}
"""Metric by the name of Qdrant's distance."""
TRIED = (1, 2, 4, 8)
"""Multiples of the present number of candidates that are tried."""
PAGE_ROWS = 1000
"""Number of points that are read at once."""


def open_qdrant(where: str) -> "QdrantClient":
    """Connect to a server at a URL, or open a folder of the client's local mode.

    Raises:
        NotSupportedError: if the client is not installed.
    """
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise NotSupportedError(f"Qdrant takes its client ({error}): pip install qdrant-client") from None
    return QdrantClient(url=where) if "://" in where else QdrantClient(path=where)


class QdrantStore:
    """Collection of points with one vector each, or with named vectors of which one is checked.

    Raises:
        BadValueError: if there is no such collection, or it has no vector of that name or no dense ones.
    """

    effort_name = "hnsw_ef"

    def __init__(self, client: "QdrantClient", collection: str, vector: str | None, text: str | None) -> None:
        if not client.collection_exists(collection):
            raise BadValueError(f"Qdrant has no collection {collection!r}", param="collection")
        self.client, self.collection, self.vector, self.text = client, collection, vector, text
        self.name = collection if vector is None else f"{collection}.{vector}"
        config = client.get_collection(collection).config
        params: Any = config.params.vectors
        if isinstance(params, dict):
            if vector not in params:
                named = ", ".join(params)
                raise BadValueError(f"name one of the vectors of {collection}: {named}", param="vector")
            params = params[vector]
        if getattr(params, "distance", None) not in METRICS:
            raise BadValueError(f"{self.name} holds no dense vectors of cosine, dot or Euclid", param="vector")
        self.metric = METRICS[params.distance]
        present = config.hnsw_config.ef_construct
        self.efforts = tuple(present * multiple for multiple in TRIED)
        quantization = params.quantization_config or config.quantization_config
        self.quantizer = None if quantization is None else f"{next(iter(quantization.model_fields_set))} quantization"

    def read(self, max_rows: int) -> Rows:
        """Return up to `max_rows` points drawn at random."""
        from qdrant_client import models

        total = self.client.count(self.collection).count
        wanted = min(max_rows, total)
        points: list[Any] = []
        with_payload: Any = [self.text] if self.text is not None else False
        if total <= max_rows:
            offset = None
            while len(points) < total:
                page, offset = self.client.scroll(
                    self.collection, limit=PAGE_ROWS, offset=offset, with_payload=with_payload, with_vectors=True
                )
                points += page
                if offset is None:
                    break
            points = [points[row] for row in np.random.default_rng(0).permutation(len(points))]
        else:
            sample = models.SampleQuery(sample=models.Sample.RANDOM)
            points = self.client.query_points(
                self.collection, query=sample, limit=wanted, with_payload=with_payload, with_vectors=True
            ).points
        found: list[tuple[Any, Any]] = [(point, point.vector) for point in points]
        if self.vector is not None:
            found = [(point, (named or {}).get(self.vector)) for point, named in found]
        found = [(point, vector) for point, vector in found if vector]  # a named vector may be missing
        texts = [(point.payload or {}).get(self.text) for point, _ in found] if self.text is not None else None
        return Rows(
            [str(point.id) for point, _ in found], np.array([vector for _, vector in found], np.float32), texts, total
        )

    def search(self, queries: FloatArray, k: int, effort: int | None = None) -> Hits:
        """Search as the collection is configured, with another number of candidates if one is given."""
        from qdrant_client import models

        return self._ask(queries, k, None if effort is None else models.SearchParams(hnsw_ef=effort))

    def search_exactly(self, queries: FloatArray, k: int, full: bool = False) -> Hits:
        """Compare each query with all points, in the quantized form if there is one, or with `full` as they are."""
        from qdrant_client import models

        ignore = models.QuantizationSearchParams(ignore=full)
        return self._ask(queries, k, models.SearchParams(exact=True, quantization=ignore))

    def _ask(self, queries: FloatArray, k: int, params: Any) -> Hits:
        ids: list[list[str]] = []
        scores: list[NDArray[np.float64]] = []
        seconds = 0.0
        for query in queries:
            begun = time.perf_counter()
            points = self.client.query_points(
                self.collection,
                query=query.tolist(),
                using=self.vector,
                limit=k,
                search_params=params,
                with_payload=False,
            ).points
            seconds += time.perf_counter() - begun
            ids.append([str(point.id) for point in points])
            sign = -1 if self.metric == "l2" else 1
            scores.append(np.array([sign * point.score for point in points], np.float64))
        return Hits(ids, scores, seconds / max(len(queries), 1))
