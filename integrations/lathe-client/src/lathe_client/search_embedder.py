"""Queries and documents of one search, for frameworks that ask for lists of numbers."""

import asyncio
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from lathe_client.async_client import AsyncClient
from lathe_client.batches import DEFAULT_BATCH_SIZE
from lathe_client.client import Client
from lathe_client.connection import DEFAULT_URL
from lathe_client.embeddings import Embeddings, require_same_space
from lathe_client.options import EmbedOptions
from lathe_client.retries import Retries

Vector = list[float]


@dataclass
class SearchEmbedder:
    """Embedder of the queries and documents of one search, whose vectors are all of one embedding space.

    The first answer sets `space_id` unless it is given. An answer of another space raises `SpaceMismatchError`: its
    vectors do not fit those that the caller has stored.

    Attributes:
        url: address of the server.
        api_key: key of the server; not shown by `repr`.
        model: `ENCODER`, `ENCODER+CHAIN` or `ENCODER+CHAIN@VERSION`; the server's first encoder if None.
        chain: `NAME` or `NAME@VERSION` of a chain.
        dimensions: dimensions of the vectors; None for all.
        query_prompt_name: name of the prompt of queries; None for the one that the encoder has for them.
        document_prompt_name: name of the prompt of documents; None for the one that the encoder has for them.
        space_id: id of the space; set by the first answer if None.
        timeout: seconds to wait for a connection, and between two parts of an answer.
        max_retries: number of retries of a call.
        batch_size: maximum number of texts in a request.
    """

    url: str = DEFAULT_URL
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    chain: str | None = None
    dimensions: int | None = None
    query_prompt_name: str | None = None
    document_prompt_name: str | None = None
    space_id: str | None = None
    timeout: float = 60.0
    max_retries: int = 3
    batch_size: int = DEFAULT_BATCH_SIZE

    def __post_init__(self) -> None:
        """Create the client of synchronous calls, which is closed when this object is collected."""
        self._client = Client(**self._build_client_arguments())
        weakref.finalize(self, self._client.close)  # frameworks do not close their embedders
        self._async_client: tuple[asyncio.AbstractEventLoop, AsyncClient] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without the clients, whose connections can neither be pickled nor copied."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of synchronous calls."""
        self._client.close()

    async def aclose(self) -> None:
        """Close the connections of asynchronous calls in the running event loop."""
        if self._async_client is not None:
            await self._get_async_client().aclose()
            self._async_client = None

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query."""
        return self._list_vectors(self._client.embed(text, **self._query_options))[0]

    def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vectors of documents in order, or an empty list for no documents."""
        return self._list_vectors(self._client.embed(texts, **self._document_options)) if texts else []

    async def aembed_query(self, text: str) -> Vector:
        """Return the vector of a query."""
        return self._list_vectors(await self._get_async_client().embed(text, **self._query_options))[0]

    async def aembed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vectors of documents in order, or an empty list for no documents."""
        return (
            self._list_vectors(await self._get_async_client().embed(texts, **self._document_options)) if texts else []
        )

    @property
    def _query_options(self) -> EmbedOptions:
        return {**self._shared_options, "prompt_name": self.query_prompt_name, "input_type": "query"}

    @property
    def _document_options(self) -> EmbedOptions:
        return {**self._shared_options, "prompt_name": self.document_prompt_name, "input_type": "document"}

    @property
    def _shared_options(self) -> EmbedOptions:
        return {"model": self.model, "chain": self.chain, "dimensions": self.dimensions}

    def _list_vectors(self, embeddings: Embeddings) -> list[Vector]:
        """Return vectors as lists of floats, and set `space_id` to their space if it is None.

        Raises:
            SpaceMismatchError: if the vectors are not of the space `space_id`.
        """
        if self.space_id is None:
            self.space_id = embeddings.space_id
        require_same_space([self.space_id, embeddings.space_id])
        rows: list[Vector] = embeddings.vectors.tolist()
        return rows

    def _get_async_client(self) -> AsyncClient:
        """Return the client for the running event loop. Another event loop gets a new client."""
        loop = asyncio.get_running_loop()
        if self._async_client is None or self._async_client[0] is not loop:
            self._async_client = loop, AsyncClient(**self._build_client_arguments())
        return self._async_client[1]

    def _build_client_arguments(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "api_key": self.api_key,
            "timeout": self.timeout,
            "retries": Retries(self.max_retries),
            "batch_size": self.batch_size,
        }
