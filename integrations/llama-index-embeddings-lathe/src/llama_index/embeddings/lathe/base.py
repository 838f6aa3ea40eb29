"""LlamaIndex embeddings of a Lathe server."""

import os
from typing import Any

from lathe_client import SearchEmbedder
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field, PrivateAttr, SecretStr


def _read_key() -> SecretStr | None:
    """Return the server's key in the environment variable `LATHE_API_KEY`, or None if it is empty or not set."""
    key = os.environ.get("LATHE_API_KEY")
    return SecretStr(key) if key else None


class LatheEmbedding(BaseEmbedding):
    """Embeddings of queries and of the texts of nodes by a Lathe server.

    Vectors of another space than the first ones raise `SpaceMismatchError`, because they do not fit an index that holds
    the first ones. Other errors come from `lathe_client`. The fields of `BaseEmbedding` hold as well; `model_name`
    is for reports, and follows from `model` and `chain` if it is left out.
    """

    base_url: str = Field(default="http://localhost:8080", description="Address of the server.")
    api_key: SecretStr | None = Field(
        default_factory=_read_key, exclude=True, description="Key of the server; LATHE_API_KEY if left out."
    )
    model: str | None = Field(default=None, description="ENCODER, ENCODER+CHAIN or ENCODER+CHAIN@VERSION.")
    chain: str | None = Field(default=None, description="NAME or NAME@VERSION of a chain.")
    dimensions: int | None = Field(default=None, description="Dimensions of the vectors; None for all.")
    query_prompt_name: str | None = Field(
        default=None, description="Name of the prompt of queries; None for the one that the encoder has for them."
    )
    document_prompt_name: str | None = Field(
        default=None, description="Name of the prompt of texts; None for the one that the encoder has for documents."
    )
    expected_space_id: str | None = Field(
        default=None, description="Id of the stored vectors' embedding space; None accepts the id of the first answer."
    )
    timeout: float = Field(default=60.0, description="Seconds to wait for a connection, and for a part of an answer.")
    max_retries: int = Field(default=3, description="Number of retries of a call.")
    embed_batch_size: int = Field(default=256, gt=0, le=2048, description="Maximum number of texts in a request.")
    _embedder: SearchEmbedder = PrivateAttr()

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        if "model_name" not in fields:
            self.model_name = "+".join(filter(None, [self.model or "lathe", self.chain]))
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
            self.embed_batch_size,
        )

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serializes the class."""
        return "LatheEmbedding"

    @property
    def space_id(self) -> str | None:
        """Id of the embedding space: `expected_space_id`, or else the first answer's, or None before it."""
        return self._embedder.space_id

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embedder.embed_query(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._embedder.embed_documents([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._embedder.embed_documents(texts)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await self._embedder.aembed_query(query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._embedder.aembed_documents([text]))[0]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await self._embedder.aembed_documents(texts)
