"""The client for programs with asyncio.

The same calls as `Client`.
"""

import asyncio
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


class AsyncClient:
    """Client of a Lathe server for one event loop.

    Its tasks may share one. Errors and retries are as for `Client`.

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
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.connection = Connection(url, api_key, timeout, retries, batch_size)
        self.batch_size = batch_size
        self._http = httpx2.AsyncClient(**self.connection.build_http_arguments(), transport=transport)

    def __repr__(self) -> str:
        return f"AsyncClient({self.connection.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def embed(self, texts: str | Sequence[str], **options: Unpack[EmbedOptions]) -> Embeddings:
        """Embed texts, and return their vectors `(n, k)` in order, in float32 unless `output_dtype` is given.

        See `Client.embed`.
        """
        calls = embed_calls.build_embed_calls(texts, self.batch_size, options)
        return join_embeddings([await self._send(call) for call in calls])

    async def reduce(self, vectors: ArrayLike, chain: str, **options: Unpack[ReduceOptions]) -> Embeddings:
        """Reduce vectors `(n, d)` by a chain of transforms, and return the result `(n, k)` in order.

        See `Client.reduce`.
        """
        calls = embed_calls.build_reduce_calls(vectors, chain, options)
        return join_embeddings([await self._send(call) for call in calls])

    async def info(self) -> dict[str, Any]:
        """Return the server's version, limits, encoders and chains.

        See `Client.info`.
        """
        return await self._send(build_object_call("/info"))

    async def list_encoders(self) -> list[dict[str, Any]]:
        """Return name, model, state, dimensions, prompts and size routes of each encoder.

        See `Client.list_encoders`.
        """
        return await self._send(build_list_call("/encoders"))

    async def list_chains(self) -> list[dict[str, Any]]:
        """Return name, versions, steps and certificate of each chain of transforms.

        See `Client.list_chains`.
        """
        return await self._send(build_list_call("/chains"))

    async def list_indexes(self) -> list[dict[str, Any]]:
        """Return name, number of items, chain and space id of each index.

        See `Client.list_indexes`.
        """
        return await self._send(build_list_call("/indexes"))

    async def create_index(self, name: str, **options: Unpack[IndexOptions]) -> dict[str, Any]:
        """Create an index and return its description. If it exists with these settings, nothing changes.

        See `Client.create_index`.
        """
        return await self._send(index_calls.build_create_index_call(name, options))

    async def delete_index(self, name: str) -> None:
        """Delete an index with its items. The key must be an admin's.

        See `Client.delete_index`.
        """
        await self._send(index_calls.build_delete_index_call(name))

    async def upsert(
        self,
        index: str,
        ids: Sequence[str],
        texts: Sequence[str] | None = None,
        vectors: ArrayLike | Embeddings | None = None,
        **options: Unpack[UpsertOptions],
    ) -> int:
        """Insert items, replacing those with the same ids, and return the number of items written.

        See `Client.upsert`.
        """
        calls = index_calls.build_upsert_calls(index, ids, texts, vectors, self.batch_size, options)
        return sum([await self._send(call) for call in calls])

    async def search(
        self,
        index: str,
        texts: str | Sequence[str] | None = None,
        vectors: ArrayLike | Embeddings | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResults:
        """Return for each query a list of its nearest items, best first.

        See `Client.search`.
        """
        calls = index_calls.build_search_calls(index, texts, vectors, self.batch_size, options)
        return join_results([await self._send(call) for call in calls])

    async def delete_items(
        self, index: str, ids: Sequence[str] | None = None, filter: Mapping[str, Any] | None = None
    ) -> int:
        """Delete items by their ids, or all that satisfy a filter, and return the number of those that existed.

        See `Client.delete_items`.
        """
        calls = index_calls.build_delete_items_calls(index, ids, filter)
        return sum([await self._send(call) for call in calls])

    async def _send(self, call: Call[Answer]) -> Answer:
        """Send a call, retry it as `retries` allows, and return its result.

        Raises:
            LatheError: if it fails.
        """
        tried = 0
        while True:
            outcome = await self._send_once(call)
            delay = self.connection.retries.choose_delay(call, outcome, tried)
            if delay is None:
                return call.read(outcome)
            await asyncio.sleep(delay)
            tried += 1

    async def _send_once(self, call: Call[Any]) -> httpx2.Response | httpx2.RequestError:
        """Send a call without a retry. Return the response, or the connection's error instead of raising it."""
        try:
            return await self._http.send(build_request(self._http, call))
        except httpx2.RequestError as error:
            return error
