"""Contents of the test of a data set: columns of rows, or a search."""

from dataclasses import dataclass
from typing import Any

Columns = dict[str, list[Any]]
"""Values of all rows by column name."""


@dataclass(frozen=True)
class Tables:
    """Columns of each split of a data set, for every task without a search."""

    splits: dict[str, Columns]


@dataclass(frozen=True)
class Search:
    """Corpus, queries and relevance judgements of a search task.

    Attributes:
        corpus: (title, text) of each document, by id.
        queries: text of each query, by id.
        relevant: grades of judged documents, by query id and document id.
        ranked: ids of the candidate documents by query id, for reranking; None to search the whole corpus.
    """

    corpus: dict[str, tuple[str, str]]
    queries: dict[str, str]
    relevant: dict[str, dict[str, int]]
    ranked: dict[str, list[str]] | None = None
