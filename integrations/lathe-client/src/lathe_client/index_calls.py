"""Calls to indexes."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx2
from numpy.typing import ArrayLike

from lathe_client.batches import as_rows, list_texts, require_ids, split_ids, split_rows, split_texts
from lathe_client.calls import Call, build_json_call, read_object, select_fields
from lathe_client.embeddings import Embeddings
from lathe_client.options import IndexOptions, SearchOptions, UpsertOptions
from lathe_client.search_results import Hit, SearchResults
from lathe_client.text_encoding import encode_text


def build_create_index_call(name: str, options: IndexOptions) -> Call[dict[str, Any]]:
    """Return the call that creates an index.

    Raises:
        TypeError: for an unknown option.
    """
    fields = select_fields(options, IndexOptions)
    return build_json_call("PUT", _index_path(name), fields, read_object, changes_state=True)


def build_delete_index_call(name: str) -> Call[None]:
    """Return the call that deletes an index."""
    return Call("DELETE", _index_path(name), lambda _: None, changes_state=True)


def build_upsert_calls(
    name: str,
    ids: Sequence[str],
    texts: Sequence[str] | None,
    vectors: ArrayLike | Embeddings | None,
    batch_size: int,
    options: UpsertOptions,
) -> list[Call[int]]:
    """Return the calls that insert or replace items, in order. The result of each is the number of items written.

    Raises:
        TypeError: for an unknown option, or a string in place of a list of ids.
        ValueError: unless either texts or float vectors are given, and as many of them and of the metadata as ids.
    """
    require_ids(ids)
    fields = select_fields(options, UpsertOptions)
    metadata = fields.pop("metadata", None)
    items = _collect_items(texts, vectors, batch_size)
    counts = {"ids": len(ids), items.field: len(items.values)}
    counts |= {} if metadata is None else {"metadata": len(metadata)}
    if len(set(counts.values())) > 1:
        numbers = ", ".join(f"{count} {what}" for what, count in counts.items())
        raise ValueError(f"there are {numbers}: give as many of each")
    return [
        build_json_call(
            "POST",
            f"{_index_path(name)}/upsert",
            items.select(part) | fields | _slice_field("ids", ids, part) | _slice_field("metadata", metadata, part),
            lambda response: int(response.json()["upserted"]),
            changes_state=True,
        )
        for part in items.parts
    ]


def build_search_calls(
    name: str,
    texts: str | Sequence[str] | None,
    vectors: ArrayLike | Embeddings | None,
    batch_size: int,
    options: SearchOptions,
) -> list[Call[SearchResults]]:
    """Return the calls that search an index, in order.

    Raises:
        TypeError: for an unknown option.
        ValueError: unless either texts or vectors are given.
    """
    fields = select_fields(options, SearchOptions)
    items = _collect_items(texts, vectors, batch_size)
    path = f"{_index_path(name)}/search"
    return [build_json_call("POST", path, items.select(part) | fields, _read_results) for part in items.parts]


def build_delete_items_calls(
    name: str, ids: Sequence[str] | None, item_filter: Mapping[str, Any] | None
) -> list[Call[int]]:
    """Return the calls that delete items by their ids, or the one call that deletes the items of a filter.

    The result of each call is the number of items deleted.

    Raises:
        TypeError: for a string in place of a list of ids.
        ValueError: unless either ids or a filter are given.
    """
    if (ids is None) == (item_filter is None):
        raise ValueError("give either ids or filter")
    selections = (
        [{"filter": item_filter}]
        if ids is None
        else [_slice_field("ids", ids, part) for part in split_ids(require_ids(ids))]
    )
    return [
        build_json_call(
            "POST",
            f"{_index_path(name)}/delete",
            selection,
            lambda response: int(response.json()["deleted"]),
            changes_state=True,
        )
        for selection in selections
    ]


@dataclass(frozen=True)
class _Items:
    """Texts or vectors that requests to an index send, and their division into requests.

    Attributes:
        field: name of the body's field, `texts` or `vectors`.
        values: texts, or base64 strings of the rows.
        space_id: space of the vectors; None if it is not known.
        parts: slices of the values, one for each request, in order.
    """

    field: str
    values: list[str]
    space_id: str | None
    parts: list[slice]

    def select(self, part: slice) -> dict[str, Any]:
        """Return the JSON fields of the request that sends a part: the values, and their space id if it is known."""
        space = {} if self.space_id is None else {"space_id": self.space_id}
        return {self.field: self.values[part]} | space


def _collect_items(
    texts: str | Sequence[str] | None, vectors: ArrayLike | Embeddings | None, batch_size: int
) -> _Items:
    """Return the texts, or the vectors as base64, with the slices of them that one request each sends.

    Raises:
        ValueError: unless exactly one of them is given, and vectors are floats `(n, d)`.
    """
    if texts is not None and vectors is None:
        listed = list_texts(texts)
        return _Items("texts", listed, None, split_texts(listed, batch_size))
    if texts is not None or vectors is None:
        raise ValueError("give either texts or vectors")
    if isinstance(vectors, Embeddings) and vectors.output_dtype != "float":
        # The server would take the numbers of codes for those of the vectors.
        raise ValueError(f"the vectors are encoded as {vectors.output_dtype}: embed with output_dtype 'float'")
    space_id, array = (vectors.space_id, vectors.vectors) if isinstance(vectors, Embeddings) else (None, vectors)
    rows = as_rows(array)
    values = [base64.b64encode(row.tobytes()).decode("ascii") for row in rows.astype("<f4", copy=False)]
    return _Items("vectors", values, space_id, split_rows(rows))


def _slice_field(name: str, values: Sequence[Any] | None, part: slice) -> dict[str, Any]:
    return {} if values is None else {name: list(values[part])}


def _index_path(name: str) -> str:
    return f"/indexes/{quote(encode_text(name, 'the name of the index'), safe='')}"


def _read_results(response: httpx2.Response) -> SearchResults:
    content = response.json()
    hits = [
        [Hit(item["id"], item["score"], item["metadata"], item.get("probability")) for item in items]
        for items in content["results"]
    ]
    return SearchResults(hits, content["space_id"], content["chain"])
