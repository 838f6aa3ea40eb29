"""Embedding of queries."""

from typing import Any

from haystack import component
from haystack.utils import Secret
from haystack_integrations.components.embedders.lathe.connection import DEFAULT_KEY, ServerComponent


@component
class LatheTextEmbedder(ServerComponent):
    """Component that embeds a text, such as a query, by a Lathe server.

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
    ) -> None:
        """Store the settings.

        Args:
            base_url: address of the server.
            api_key: key of the server; the variable `LATHE_API_KEY`, if it is set.
            model: `ENCODER`, `ENCODER+CHAIN` or `ENCODER+CHAIN@VERSION`; the server's first encoder if None.
            chain: `NAME` or `NAME@VERSION` of a chain.
            dimensions: dimensions of the vectors; None for all.
            prompt_name: name of the prompt of the text; None for the one that the encoder has for queries.
            expected_space_id: id of the space of stored vectors; None accepts the first answer's space.
            timeout: seconds to wait for a connection, and between two parts of an answer.
            max_retries: number of retries of a call while the server is busy, or after a broken connection.
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

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    def run(self, text: str) -> dict[str, Any]:
        """Return the text's `embedding`, and its `space_id` in `meta`.

        Raises:
            TypeError: if it is not a text.
        """
        embedder = self._get_embedder()
        embedding = embedder.embed_query(_require_text(text))
        return {"embedding": embedding, "meta": {"space_id": embedder.space_id}}

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    async def run_async(self, text: str) -> dict[str, Any]:
        """Return what `run` returns, without blocking the event loop."""
        embedder = self._get_embedder()
        embedding = await embedder.aembed_query(_require_text(text))
        return {"embedding": embedding, "meta": {"space_id": embedder.space_id}}

    def _list_own_settings(self) -> dict[str, Any]:
        """Return the arguments of `SearchEmbedder` that the components do not share."""
        return {"query_prompt_name": self.prompt_name}


def _require_text(text: str) -> str:
    """Return the argument if it is a text.

    Raises:
        TypeError: if it is something else.
    """
    if not isinstance(text, str):
        raise TypeError(f"LatheTextEmbedder takes a text, not {type(text)}; for documents take LatheDocumentEmbedder")
    return text
