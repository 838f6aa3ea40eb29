"""LangChain embeddings of a Lathe server."""

from langchain_lathe.embeddings import LatheEmbeddings

__all__ = ["LatheEmbeddings"]
