"""An index of a running server as a checkup reads and searches it, over HTTP."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.service.errors import BadValueError
from lathe.service.index.query import DEFAULT_EF
from lathe.training.checkup.store import Hits, Metric, Rows
from lathe.transforms.vectors import FloatArray

TRIED = (1, 2, 4, 8)
"""Multiples of the default number of candidates that are tried."""
PAGE_ROWS = 1000
"""Number of ids that are listed at once."""
GET_ROWS = 256
"""Number of items whose vectors are asked for at once."""
MAX_ROWS = 10_000
"""Maximum number of items whose vectors are read, as they come as JSON."""
RESCORED = 50
"""Multiple of the hits that are ranked again by their original vectors, to stand for all of them."""

Send = Callable[[str, str, Any], tuple[int, Any]]
"""Function that sends a request of a method, a path and a body, and returns the status and the answer."""


class IndexStore:
    """Items of an index, with their original vectors.

    Raises:
        BadValueError: if the index stores no original vectors.
        ServiceError: if there is no such index.
    """

    effort_name = "ef"
    efforts = tuple(DEFAULT_EF * multiple for multiple in TRIED)

    def __init__(self, name: str, send: Send) -> None:
        self.name, self.send = name, send
        self.described = self._ask("GET", "")
        if self.described["originals"] == "none":
            raise BadValueError(f"the index {name} stores no original vectors, which a checkup reads", param="index")
        self.metric: Metric = self.described["metric"]
        chain = self.described["chain"]
        self.quantizer = None if chain == "none" else f"the chain {chain}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return self.send(method, f"/indexes/{self.name}{path}", body)[1]

    def read(self, max_rows: int) -> Rows:
        """Return up to `max_rows` items, at most 10,000, drawn at random."""
        ids: list[str] = []
        texts: dict[str, str | None] = {}
        cursor = None
        while cursor is not None or not ids:
            page = self._ask("GET", f"/items?limit={PAGE_ROWS}" + (f"&cursor={cursor}" if cursor else ""))
            ids += [item["id"] for item in page["items"]]
            field = self.described["text_field"]
            texts |= {item["id"]: (item["metadata"] or {}).get(field) for item in page["items"] if field}
            if (cursor := page["next_cursor"]) is None:
                break
        chosen = [ids[row] for row in np.random.default_rng(0).permutation(len(ids))[: min(max_rows, MAX_ROWS)]]
        vectors: list[Any] = []
        for start in range(0, len(chosen), GET_ROWS):
            items = self._ask("POST", "/get", {"ids": chosen[start : start + GET_ROWS], "vectors": True})["items"]
            vectors += [(item["id"], item["vector"]) for item in items if item is not None]
        rows = np.array([vector for _, vector in vectors], np.float32).reshape(len(vectors), -1)
        kept = [item for item, _ in vectors]
        return Rows(kept, rows, [texts[item] for item in kept] if texts else None, len(ids))

    def search(self, queries: FloatArray, k: int, effort: int | None = None) -> Hits:
        """Search the graph, with another number of candidates if one is given."""
        return self._search(queries, {"k": k} | ({} if effort is None else {"ef": effort}))

    def search_exactly(self, queries: FloatArray, k: int, full: bool = False) -> Hits:
        """Compare each query with all items through the chain, and with `full` rank the best by their originals."""
        return self._search(queries, {"k": k, "exact": True} | ({"rescore": RESCORED} if full else {}))

    def _search(self, queries: FloatArray, options: dict[str, Any]) -> Hits:
        ids: list[list[str]] = []
        scores: list[NDArray[np.float64]] = []
        sign, begun = -1 if self.metric == "l2" else 1, time.perf_counter()
        for query in queries:
            body = {"vectors": [query.tolist()], "space_id": self.described["raw_space_id"]} | options
            (hits,) = self._ask("POST", "/search", body)["results"]
            ids.append([hit["id"] for hit in hits])
            scores.append(np.array([sign * hit["score"] for hit in hits], np.float64))
        return Hits(ids, scores, (time.perf_counter() - begun) / max(len(queries), 1))
