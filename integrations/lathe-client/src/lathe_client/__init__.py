"""Client of a Lathe server: embeddings, reduction and search, as NumPy arrays."""

from lathe_client.async_client import AsyncClient
from lathe_client.client import Client
from lathe_client.embeddings import Embeddings
from lathe_client.errors import (
    InvalidTextError,
    LatheError,
    NoAnswerError,
    ServerError,
    SpaceMismatchError,
    UnexpectedAnswerError,
)
from lathe_client.retries import Retries
from lathe_client.search_embedder import SearchEmbedder
from lathe_client.search_results import Hit, SearchResults

__all__ = [
    "AsyncClient",
    "Client",
    "Embeddings",
    "Hit",
    "InvalidTextError",
    "LatheError",
    "NoAnswerError",
    "Retries",
    "SearchEmbedder",
    "SearchResults",
    "ServerError",
    "SpaceMismatchError",
    "UnexpectedAnswerError",
]
