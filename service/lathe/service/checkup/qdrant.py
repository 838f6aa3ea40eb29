"""A collection of Qdrant as a checkup reads and searches it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lathe.service.errors import BadValueError, NotSupportedError, UnavailableError
from lathe.training.checkup.store import Change, Hits, Rows, Store, ask_each
from lathe.training.settings import Metric
from lathe.transforms.quality.metrics import normalized_rows
from lathe.transforms.vectors import FloatArray

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

METRICS: dict[str, Metric] = {"Cosine": "cosine", "Dot": "ip", "Euclid": "l2"}
"""Metric by the name of Qdrant's distance."""
WIDE = 2048
"""Number of candidates of a search that stands for comparing all points in the quantized form."""
PAGE_ROWS = 1000
"""Number of points that are read at once."""


@contextmanager
def open_qdrant(where: str) -> "Iterator[QdrantClient]":
    """Connect to a server at a URL, or open a folder of the client's local mode, for the block.

    The key of a server's API is read from `QDRANT_API_KEY`.

    Raises:
        NotSupportedError: if the client is not installed.
        BadValueError: if there is no such folder, or it is not one of the local mode.
        UnavailableError: if the server refuses or does not answer, or another process has opened the folder.
    """
    try:
        from qdrant_client import QdrantClient
        from qdrant_client.http.exceptions import ApiException
    except ImportError as error:
        raise NotSupportedError(f"Qdrant takes its client ({error}): pip install 'lathe-service[qdrant]'") from None
    is_server = "://" in where
    if not is_server and not (Path(where) / "meta.json").is_file():  # the client would create it
        raise BadValueError(
            f"there is no folder {where} of the local mode; a server is named by its URL, http://…", param="qdrant"
        )
    try:
        key = os.environ.get("QDRANT_API_KEY")
        client = (
            QdrantClient(url=where, api_key=key, check_compatibility=False) if is_server else QdrantClient(path=where)
        )
        try:
            yield client
        finally:
            client.close()
    except (ApiException, RuntimeError) as error:
        raise UnavailableError(f"Qdrant at {where}: {error}") from None


class QdrantStore(Store):
    """Collection of points with one vector each, or with named vectors of which one is checked.

    Raises:
        BadValueError: if there is no such collection, or no dense vector of that name.
    """

    effort_name = "hnsw_ef"

    def __init__(self, client: "QdrantClient", collection: str, vector: str | None, text: str | None) -> None:
        if not client.collection_exists(collection):
            raise BadValueError(f"Qdrant has no collection {collection!r}", param="collection")
        self.client, self.collection, self.vector, self.text = client, collection, vector, text
        self.name = collection if vector is None else f"{collection}#{vector}"
        config = client.get_collection(collection).config
        params: Any = config.params.vectors
        if isinstance(params, dict) and vector not in params:
            named = ", ".join(params) or "none"
            raise BadValueError(f"--collection {collection}#VECTOR names one of its dense vectors: {named}", "vector")
        if isinstance(params, dict):
            params = params[vector]
        elif vector is not None:
            raise BadValueError(f"the collection {collection} has no named vectors", param="vector")
        if params.distance not in METRICS or params.multivector_config is not None:
            raise BadValueError(f"{self.name} must hold one vector a point, by {', '.join(METRICS)}", param="vector")
        self.metric = METRICS[params.distance]
        options = client.init_options
        if options["path"] is None and options["location"] != ":memory:":  # the local mode compares all points
            # Qdrant searches as many candidates as it built the graph with.
            graph = params.hnsw_config if params.hnsw_config and params.hnsw_config.ef_construct else config.hnsw_config
            self.efforts = tuple(graph.ef_construct * multiple for multiple in (1, 2, 4, 8))
            quantization = params.quantization_config or config.quantization_config
            if quantization is not None:
                self.quantizer = f"{next(iter(quantization.model_fields_set)).capitalize()} quantization"

    def read(self, max_rows: int) -> Rows:
        """Return up to `max_rows` points that have the vector, drawn at random. Texts that are not strings are None."""
        from qdrant_client import models

        has = models.Filter(must=[models.HasVectorCondition(has_vector=self.vector or "")])
        total = self.client.count(self.collection, count_filter=has).count
        chosen: dict[str, Any] = {
            "with_payload": [self.text] if self.text is not None else False,
            "with_vectors": [self.vector] if self.vector is not None else True,
        }
        points: list[Any] = []
        if total > max_rows:
            sample = models.SampleQuery(sample=models.Sample.RANDOM)
            points = self.client.query_points(
                self.collection, query=sample, query_filter=has, limit=max_rows, **chosen
            ).points
        else:
            offset: Any = 0
            while offset is not None:
                page, offset = self.client.scroll(
                    self.collection, scroll_filter=has, limit=PAGE_ROWS, offset=offset or None, **chosen
                )
                points += page
            points = [points[row] for row in np.random.default_rng(0).permutation(len(points))]
        vectors: list[Any] = [point.vector for point in points]
        if self.vector is not None:
            vectors = [named[self.vector] for named in vectors]
        texts: list[str | None] | None = None
        if self.text is not None:
            values = [(point.payload or {}).get(self.text) for point in points]
            texts = [value if isinstance(value, str) else None for value in values]
        return Rows([str(point.id) for point in points], np.array(vectors, np.float32), texts, total)

    def replace(self, changes: Sequence[Change]) -> int:
        """Replace vectors of points that still have the old one. Return the number of points that had it."""
        from qdrant_client import models

        written = 0
        for start in range(0, len(changes), PAGE_ROWS):
            batch = {str(row): (old, new) for row, old, new in changes[start : start + PAGE_ROWS]}
            ids = [int(row) if row.isdigit() else row for row in batch]
            points = []
            for point in self.client.retrieve(self.collection, ids, with_vectors=True):
                stored: Any = point.vector
                old, new = batch[str(point.id)]
                now = stored if self.vector is None else (stored or {}).get(self.vector)
                if now is not None and self._is_same(now, old):
                    vector: Any = new if self.vector is None else {self.vector: new}
                    points.append(models.PointVectors(id=point.id, vector=vector))
            if points:
                self.client.update_vectors(self.collection, points)
            written += len(points)
        return written

    def _is_same(self, now: list[float], old: list[float]) -> bool:
        """Return whether a point still has its old vector, as Qdrant stores it: normalized for cosine, or rounded."""
        pair = np.array([now, old], np.float32)
        if self.metric == "cosine":
            pair = normalized_rows(pair, np.float32).numpy()
        return np.allclose(pair[0], pair[1], rtol=1e-3, atol=1e-6)

    def search(self, queries: FloatArray, k: int, effort: int | None = None) -> Hits:
        """Search as the collection is configured, with another number of candidates if one is given."""
        return self._ask(queries, k, {} if effort is None else {"hnsw_ef": effort})

    def search_exactly(self, queries: FloatArray, k: int, full: bool = False) -> Hits:
        """Compare each query with all points, or without `full` in the quantized form if there is one.

        Qdrant compares full vectors if a search is to be exact. For the quantized form, a search of the graph with many
        candidates stands for comparing all.
        """
        if full or self.quantizer is None:
            return self._ask(queries, k, {"exact": True})
        return self._ask(queries, k, {"hnsw_ef": WIDE, "quantization": {"rescore": False}})

    def _ask(self, queries: FloatArray, k: int, params: dict[str, Any]) -> Hits:
        from qdrant_client import models

        sign = -1 if self.metric == "l2" else 1
        given = models.SearchParams(**params) if self.efforts else None  # the local mode warns of any

        def ask(query: list[float]) -> Iterator[tuple[Any, float]]:
            points = self.client.query_points(
                self.collection, query=query, using=self.vector, limit=k, search_params=given, with_payload=False
            ).points
            return ((point.id, sign * point.score) for point in points)

        return ask_each(queries, ask)
