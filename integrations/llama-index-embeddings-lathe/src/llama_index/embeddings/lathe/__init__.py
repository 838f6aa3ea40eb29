"""LlamaIndex embeddings of a Lathe server."""

from llama_index.embeddings.lathe.base import LatheEmbedding

__all__ = ["LatheEmbedding"]
