"""LangChain embeddings and a vector store of a Lathe server."""

from langchain_lathe.embeddings import LatheEmbeddings
from langchain_lathe.vector_store import LatheVectorStore

__all__ = ["LatheEmbeddings", "LatheVectorStore"]
