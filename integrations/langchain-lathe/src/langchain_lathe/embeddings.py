"""LangChain embeddings of a Lathe server."""

from typing import Self

from langchain_core.embeddings import Embeddings
from langchain_core.utils import secret_from_env
from lathe_client import SearchEmbedder
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, model_validator


class LatheEmbeddings(BaseModel, Embeddings):
    """Embeddings of queries and documents by a Lathe server.

    Vectors of another space than the first ones raise `SpaceMismatchError`, because they do not fit a vector store that
    holds the first ones. Other errors come from `lathe_client`.

    Attributes:
        base_url: address of the server.
        api_key: key of the server; the variable `LATHE_API_KEY` if left out.
        model: `ENCODER`, `ENCODER+CHAIN` or `ENCODER+CHAIN@VERSION`; the server's first encoder if None.
        chain: `NAME` or `NAME@VERSION` of a chain.
        dimensions: dimensions of the vectors; None for all.
        query_prompt_name: name of the prompt of queries; None for the one that the encoder has for them.
        document_prompt_name: name of the prompt of documents; None for the one that the encoder has for them.
        expected_space_id: id of the space of stored vectors; None accepts the first answer's space.
        timeout: seconds to wait for a connection, and between two parts of an answer.
        max_retries: number of retries of a call while the server is busy, or after a broken connection.
        batch_size: maximum number of texts in a request.
    """

    # Errors of the address would quote the key.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    base_url: str = "http://localhost:8080"
    api_key: SecretStr | None = Field(default_factory=secret_from_env("LATHE_API_KEY", default=None))
    model: str | None = None
    chain: str | None = None
    dimensions: int | None = None
    query_prompt_name: str | None = None
    document_prompt_name: str | None = None
    expected_space_id: str | None = None
    timeout: float = 60.0
    max_retries: int = 3
    batch_size: int = 256
    _embedder: SearchEmbedder = PrivateAttr()

    @model_validator(mode="after")
    def build_embedder(self) -> Self:
        """Build the embedder that calls the server, and return this object.

        Raises:
            ValueError: for an invalid address or key.
        """
        self._embedder = SearchEmbedder(
            self.base_url,
            self.api_key.get_secret_value() if self.api_key else None,
            self.model,
            self.chain,
            self.dimensions,
            self.query_prompt_name,
            self.document_prompt_name,
            self.expected_space_id,
            self.timeout,
            self.max_retries,
            self.batch_size,
        )
        return self

    @property
    def space_id(self) -> str | None:
        """Id of the embedding space: `expected_space_id`, or else the first answer's, or None before it."""
        return self._embedder.space_id

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of documents in order."""
        return self._embedder.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return self._embedder.embed_query(text)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of documents in order."""
        return await self._embedder.aembed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return await self._embedder.aembed_query(text)
