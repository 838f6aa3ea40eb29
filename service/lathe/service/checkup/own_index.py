"""An index of a running server as a checkup reads and searches it, over HTTP."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lathe.service.errors import BadValueError
from lathe.service.index.query import DEFAULT_EF, MANY_RESCORED
from lathe.training.checkup.store import Hits, Rows, Store, ask_each
from lathe.transforms.vectors import FloatArray

PAGE_ROWS = 1000
"""Number of ids that are listed at once."""
GET_ROWS = 256
"""Number of items whose vectors are asked for at once."""
MAX_ROWS = 10_000
"""Maximum number of items whose vectors are read, as they come as JSON."""

Send = Callable[[str, str, Any], tuple[int, Any]]
"""Function that sends a request of a method, a path and a body, and returns the status and the answer."""


class IndexStore(Store):
    """Items of an index, with their original vectors.

    Raises:
        BadValueError: if the index stores no original vectors.
        ServiceError: if there is no such index, or its backend compares no query with all items.
    """

    effort_name = "ef"
    efforts = tuple(DEFAULT_EF * multiple for multiple in (1, 2, 4, 8))

    def __init__(self, name: str, send: Send) -> None:
        self.name, self.send = name, send
        self.described = self._ask("GET", "")
        if self.described["originals"] == "none":
            raise BadValueError(f"the index {name} stores no original vectors, which a checkup reads", param="index")
        self.metric = self.described["metric"]
        self.text_field: str | None = self.described["text_field"]
        chain = self.described["chain"]
        self.quantizer = None if chain == "none" else f"The chain {chain}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return self.send(method, f"/indexes/{self.name}{path}", body)[1]

    def read(self, max_rows: int) -> Rows:
        """Return up to `max_rows` items, at most 10,000, drawn at random."""
        texts: dict[str, str | None] = {}
        cursor = ""
        while cursor is not None:
            page = self._ask("GET", f"/items?limit={PAGE_ROWS}{cursor and f'&cursor={cursor}'}")
            texts |= {item["id"]: (item["metadata"] or {}).get(self.text_field) for item in page["items"]}
            cursor = page["next_cursor"]
        ids = [*texts]
        chosen = [ids[row] for row in np.random.default_rng(0).permutation(len(ids))[: min(max_rows, MAX_ROWS)]]

        vectors: dict[str, list[float]] = {}
        for start in range(0, len(chosen), GET_ROWS):
            items = self._ask("POST", "/get", {"ids": chosen[start : start + GET_ROWS], "vectors": True})["items"]
            vectors |= {item["id"]: item["vector"] for item in items if item is not None}  # others were just deleted
        found = None if self.text_field is None else [texts[row] for row in vectors]
        return Rows([*vectors], np.array([*vectors.values()], np.float32), found, len(ids))

    def search(self, queries: FloatArray, k: int, effort: int | None = None) -> Hits:
        """Search the graph, with another number of candidates if one is given."""
        return self._search(queries, {"k": k} | ({} if effort is None else {"ef": effort}))

    def search_exactly(self, queries: FloatArray, k: int, full: bool = False) -> Hits:
        """Compare each query with all items through the chain, and with `full` rank the best by their originals."""
        return self._search(queries, {"k": k, "exact": True} | ({"rescore": MANY_RESCORED} if full else {}))

    def _search(self, queries: FloatArray, options: dict[str, Any]) -> Hits:
        sign = -1 if self.metric == "l2" else 1
        options = options | {"space_id": self.described["raw_space_id"]}

        def ask(query: list[float]) -> list[tuple[str, float]]:
            (hits,) = self._ask("POST", "/search", {"vectors": [query]} | options)["results"]
            return [(hit["id"], sign * hit["score"]) for hit in hits]

        return ask_each(queries, ask)
