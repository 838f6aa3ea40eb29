"""Construction of the embedder that both components use."""

from typing import Any

from haystack.utils import Secret
from lathe_client import SearchEmbedder

DEFAULT_KEY = Secret.from_env_var("LATHE_API_KEY", strict=False)


def build_embedder(api_key: Secret | None, **settings: Any) -> SearchEmbedder:
    """Build the embedder that calls the server, with the resolved key; `settings` are arguments of `SearchEmbedder`."""
    return SearchEmbedder(api_key=api_key.resolve_value() if api_key else None, **settings)
