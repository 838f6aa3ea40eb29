"""The client for programs without asyncio."""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx2
from numpy.typing import ArrayLike

from lathe_client import embed_calls, index_calls
from lathe_client.batches import DEFAULT_BATCH_SIZE
from lathe_client.calls import Call, build_list_call, build_object_call
from lathe_client.connection import DEFAULT_URL, Connection, build_request
from lathe_client.embeddings import Embeddings, join_embeddings
from lathe_client.options import EmbedOptions, IndexOptions, ReduceOptions, SearchOptions, UpsertOptions
from lathe_client.retries import DEFAULT_RETRIES, Retries
from lathe_client.search_results import SearchResults, join_results

Answer = TypeVar("Answer")


class Client:
    """Client of a Lathe server.

    Threads may share one. All calls raise a `LatheError`: `ServerError` for an answer with an error status,
    `NoAnswerError` without an answer, `InvalidTextError` for a text that is not Unicode. A server that is busy (429,
    503) is asked again later, as it says in `Retry-After`. After a broken connection, calls that change nothing are
    sent again.

    Args:
        url: address of the server.
        api_key: key of the server, sent as `Authorization: Bearer`.
        timeout: seconds to wait for a connection, and between two parts of an answer.
        retries: how often, and after which delays, a call is retried.
        batch_size: maximum number of texts in a request; more are sent in several requests, one after another.
        transport: how requests are sent; None for HTTP.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        retries: Retries = DEFAULT_RETRIES,
        batch_size: int = DEFAULT_BATCH_SIZE,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.connection = Connection(url, api_key, timeout, retries, batch_size)
        self.batch_size = batch_size
        self._http = httpx2.Client(**self.connection.build_http_arguments(), transport=transport)

    def __repr__(self) -> str:
        return f"Client({self.connection.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def embed(self, texts: str | Sequence[str], **options: Unpack[EmbedOptions]) -> Embeddings:
        """Embed texts, and return their vectors `(n, k)` in order, in float32 unless `output_dtype` is given.

        Args:
            texts: one text or several; more than `batch_size` are sent in several requests.
            options: see `EmbedOptions`.
        """
        calls = embed_calls.build_embed_calls(texts, self.batch_size, options)
        return join_embeddings([self._send(call) for call in calls])

    def reduce(self, vectors: ArrayLike, chain: str, **options: Unpack[ReduceOptions]) -> Embeddings:
        """Reduce vectors `(n, d)` by a chain of transforms, and return the result `(n, k)` in order.

        Args:
            vectors: original vectors of the encoder that the chain was fitted for.
            chain: `NAME` or `NAME@VERSION`.
            options: see `ReduceOptions`.
        """
        calls = embed_calls.build_reduce_calls(vectors, chain, options)
        return join_embeddings([self._send(call) for call in calls])

    def info(self) -> dict[str, Any]:
        """Return the server's version, limits, encoders and chains."""
        return self._send(build_object_call("/info"))

    def list_encoders(self) -> list[dict[str, Any]]:
        """Return name, model, state, dimensions, prompts and size routes of each encoder."""
        return self._send(build_list_call("/encoders"))

    def list_chains(self) -> list[dict[str, Any]]:
        """Return name, versions, steps and certificate of each chain of transforms."""
        return self._send(build_list_call("/chains"))

    def list_indexes(self) -> list[dict[str, Any]]:
        """Return name, number of items, chain and space id of each index."""
        return self._send(build_list_call("/indexes"))

    def create_index(self, name: str, **options: Unpack[IndexOptions]) -> dict[str, Any]:
        """Create an index and return its description. If it exists with these settings, nothing changes.

        The key must be an admin's. `chain` is required; see `IndexOptions`.
        """
        return self._send(index_calls.build_create_index_call(name, options))

    def delete_index(self, name: str) -> None:
        """Delete an index with its items. The key must be an admin's."""
        self._send(index_calls.build_delete_index_call(name))

    def upsert(
        self,
        index: str,
        ids: Sequence[str],
        texts: Sequence[str] | None = None,
        vectors: ArrayLike | Embeddings | None = None,
        **options: Unpack[UpsertOptions],
    ) -> int:
        """Insert items, replacing those with the same ids, and return the number of items written.

        A request writes all of its items or none; many items are sent in several requests.

        Args:
            index: name of the index.
            ids: ids of the items.
            texts: texts that the server encodes, or
            vectors: original vectors `(n, d)` of the index's encoder; vectors by `embed` also name their space.
            options: see `UpsertOptions`.
        """
        calls = index_calls.build_upsert_calls(index, ids, texts, vectors, self.batch_size, options)
        return sum(self._send(call) for call in calls)

    def search(
        self,
        index: str,
        texts: str | Sequence[str] | None = None,
        vectors: ArrayLike | Embeddings | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResults:
        """Return for each query a list of its nearest items, best first.

        Args:
            index: name of the index.
            texts: queries that the server encodes, or
            vectors: vectors `(q, d)` of queries; vectors by `embed` also name their space.
            options: see `SearchOptions`.
        """
        calls = index_calls.build_search_calls(index, texts, vectors, self.batch_size, options)
        return join_results([self._send(call) for call in calls])

    def delete_items(
        self, index: str, ids: Sequence[str] | None = None, filter: Mapping[str, Any] | None = None
    ) -> int:
        """Delete items by their ids, or all that satisfy a filter, and return the number of those that existed."""
        return sum(self._send(call) for call in index_calls.build_delete_items_calls(index, ids, filter))

    def _send(self, call: Call[Answer]) -> Answer:
        """Send a call, retry it as `retries` allows, and return its result.

        Raises:
            LatheError: if it fails.
        """
        tried = 0
        while True:
            outcome = self._send_once(call)
            delay = self.connection.retries.choose_delay(call, outcome, tried)
            if delay is None:
                return call.read(outcome)
            time.sleep(delay)
            tried += 1

    def _send_once(self, call: Call[Any]) -> httpx2.Response | httpx2.RequestError:
        """Send a call without a retry. Return the response, or the connection's error instead of raising it."""
        try:
            return self._http.send(build_request(self._http, call))
        except httpx2.RequestError as error:
            return error
