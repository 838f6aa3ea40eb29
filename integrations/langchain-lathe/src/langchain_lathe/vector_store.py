"""LangChain vector store in an index of a Lathe server."""

from collections.abc import Iterable
from typing import Any, Self
from uuid import uuid4

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import run_in_executor
from langchain_core.vectorstores import VectorStore
from lathe_client import Client
from lathe_client.search_results import Hit


class LatheVectorStore(VectorStore):
    """Documents in an index of a Lathe server, which encodes texts and queries.

    Relevance scores are the probabilities that hits are right, which a calibrated index answers. Options of
    `lathe_client.Client.search`, such as `filter`, `rescore` and `min_probability`, are options of all searches here.

    Args:
        index: name of an index that has an encoder.
        client: client of the server.
        text_field: field of an item's metadata that holds the text.
    """

    def __init__(self, index: str, client: Client, text_field: str = "text") -> None:
        self.index = index
        self.client = client
        self.text_field = text_field

    @classmethod
    def from_texts(  # type: ignore[override]  # LangChain has no place for what a store is in
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        index: str,
        client: Client,
        **options: Any,
    ) -> Self:
        """Create an index if it is missing, add texts to it, and return the store.

        Args:
            texts: the texts.
            embedding: not used, since the server encodes.
            metadatas: metadata of each text.
            ids: ids of the texts; None for random ones.
            index: name of the index.
            client: client of the server, with an admin's key.
            options: see `lathe_client.options.IndexOptions`; no chain means full vectors.
        """
        store = cls(index, client)
        client.create_index(index, **{"chain": "none", "text_field": store.text_field} | options)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, replacing those with the same ids, and return the ids. Texts without an id get a random one."""
        listed = list(texts)
        items = [item or str(uuid4()) for item in ids or [""] * len(listed)]
        fields = metadatas or [{}] * len(listed)
        metadata = [given | {self.text_field: text} for given, text in zip(fields, listed, strict=True)]
        self.client.upsert(self.index, items, texts=listed, metadata=metadata, **kwargs)
        return items

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents by their ids, or with `filter` those whose metadata satisfy it."""
        self.client.delete_items(self.index, ids, **kwargs)
        return True

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Return the k documents that are nearest to a query, best first."""
        return [self._read(hit) for hit in self._search(query, k, kwargs)]

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        """Return the k documents that are nearest to a query, best first, each with its cosine."""
        return [(self._read(hit), hit.score) for hit in self._search(query, k, kwargs)]

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return the k documents that are nearest to a query, each with the probability that it is right.

        Raises:
            ValueError: if the index is not calibrated, or has found fewer than ten items.
        """
        hits = self._search(query, k, kwargs)
        found = [(self._read(hit), hit.probability) for hit in hits if hit.probability is not None]
        if len(found) < len(hits):
            raise ValueError(
                f"hits of the index {self.index} have no probability: calibrate it (lathe index calibrate "
                f"{self.index}), and let a search find ten items"
            )
        return found

    async def _asimilarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        # LangChain's own would make relevance scores of the cosines.
        return await run_in_executor(None, self._similarity_search_with_relevance_scores, query, k, **kwargs)

    def _search(self, query: str, k: int, options: dict[str, Any]) -> list[Hit]:
        return self.client.search(self.index, query, k=k, **options).hits[0]

    def _read(self, hit: Hit) -> Document:
        metadata = dict(hit.metadata or {})
        return Document(page_content=metadata.pop(self.text_field, ""), metadata=metadata, id=hit.id)
