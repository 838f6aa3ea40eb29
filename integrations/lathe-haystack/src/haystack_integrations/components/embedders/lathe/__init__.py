"""Haystack embedders of a Lathe server."""

from haystack_integrations.components.embedders.lathe.document_embedder import LatheDocumentEmbedder
from haystack_integrations.components.embedders.lathe.text_embedder import LatheTextEmbedder

__all__ = ["LatheDocumentEmbedder", "LatheTextEmbedder"]
