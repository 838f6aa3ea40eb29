"""Embedding of documents."""

from dataclasses import replace
from typing import Any

from haystack import Document, component
from haystack.utils import Secret
from haystack_integrations.components.embedders.lathe.connection import DEFAULT_KEY, ServerComponent


@component
class LatheDocumentEmbedder(ServerComponent):
    """Component that embeds documents by a Lathe server.

    Vectors of another space than the first ones raise `SpaceMismatchError`. Other errors come from `lathe_client`.
    """

    def __init__(
        self,
        base_url: str = "http://localhost:8080",
        api_key: Secret | None = DEFAULT_KEY,
        model: str | None = None,
        chain: str | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        expected_space_id: str | None = None,
        timeout: float = 60.0,
        max_retries: int = 3,
        batch_size: int = 256,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
    ) -> None:
        """Store the settings.

        Args:
            base_url: address of the server.
            api_key: key of the server; the variable `LATHE_API_KEY`, if it is set.
            model: `ENCODER`, `ENCODER+CHAIN` or `ENCODER+CHAIN@VERSION`; the server's first encoder if None.
            chain: `NAME` or `NAME@VERSION` of a chain.
            dimensions: dimensions of the vectors; None for all.
            prompt_name: name of the prompt of documents; None for the one that the encoder has for them.
            expected_space_id: id of the space of stored vectors; None accepts the first answer's space.
            timeout: seconds to wait for a connection, and between two parts of an answer.
            max_retries: number of retries of a call while the server is busy, or after a broken connection.
            batch_size: maximum number of documents in a request.
            meta_fields_to_embed: metadata fields whose values are put before the content.
            embedding_separator: what separates these values and the content.
        """
        self.base_url = base_url
        self.api_key = api_key
        self.model = model
        self.chain = chain
        self.dimensions = dimensions
        self.prompt_name = prompt_name
        self.expected_space_id = expected_space_id
        self.timeout = timeout
        self.max_retries = max_retries
        self.batch_size = batch_size
        self.meta_fields_to_embed = meta_fields_to_embed or []
        self.embedding_separator = embedding_separator

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Return copies of the `documents` with their embeddings, and the `space_id` of these in `meta`.

        Raises:
            TypeError: if the documents are not a list of documents.
        """
        embedder = self._get_embedder()
        embeddings = embedder.embed_documents(self._list_texts(documents))
        return _build_result(documents, embeddings, embedder.space_id)

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        """Return what `run` returns, without blocking the event loop."""
        embedder = self._get_embedder()
        embeddings = await embedder.aembed_documents(self._list_texts(documents))
        return _build_result(documents, embeddings, embedder.space_id)

    def _list_texts(self, documents: list[Document]) -> list[str]:
        """Return the text of each document: the values of its metadata fields to embed, then its content."""
        if not isinstance(documents, list) or not all(isinstance(document, Document) for document in documents):
            raise TypeError("LatheDocumentEmbedder takes a list of documents; for a text take LatheTextEmbedder")
        texts = []
        for document in documents:
            values = [document.meta.get(name) for name in self.meta_fields_to_embed]
            parts = [*(str(value) for value in values if value is not None), document.content or ""]
            texts.append(self.embedding_separator.join(parts))
        return texts

    def _list_own_settings(self) -> dict[str, Any]:
        """Return the arguments of `SearchEmbedder` that the components do not share."""
        return {"document_prompt_name": self.prompt_name, "batch_size": self.batch_size}


def _build_result(documents: list[Document], embeddings: list[list[float]], space_id: str | None) -> dict[str, Any]:
    """Return the outputs of the component: copies of the documents with embeddings, and the space's id."""
    embedded = [
        replace(document, embedding=embedding) for document, embedding in zip(documents, embeddings, strict=True)
    ]
    return {"documents": embedded, "meta": {"space_id": space_id}}
