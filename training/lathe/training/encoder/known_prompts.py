"""Prompts that models need and that their folders may lack, by the names of the models.

The texts are those of the models' cards. A model that was trained with prompts and gets none finds less.
"""

import re
from collections.abc import Mapping

BGE_QUERY = "Represent this sentence for searching relevant passages: "
WEB_SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "

KNOWN_PROMPTS: tuple[tuple[str, Mapping[str, str]], ...] = (
    (r"e5.*instruct|qwen\d*-embedding|gte-qwen", {"query": WEB_SEARCH}),
    (r"\be5-", {"query": "query: ", "passage": "passage: "}),
    (r"bge-(small|base|large)-en|mxbai-embed|arctic-embed", {"query": BGE_QUERY}),
    (r"bge-(small|base|large)-zh", {"query": "为这个句子生成表示以用于检索相关文章："}),
    (r"nomic-embed-text", {"query": "search_query: ", "document": "search_document: "}),
    (r"embeddinggemma", {"query": "task: search result | query: ", "document": "title: none | text: "}),
)
"""Patterns of names, in lower case, and the prompts of their models; the first that matches counts."""


def find_missing_prompts(model: str, prompts: Mapping[str, str]) -> Mapping[str, str]:
    """Return the prompts, by name, that a model of this name is known to need and does not have. The result is empty if
    the model has any prompt that is not empty, or is not known.

    Args:
        model: hub id or folder of the model.
        prompts: prompts that it has, from its folder and the settings.
    """
    if any(prompts.values()):
        return {}
    name = model.rstrip("/").rpartition("/")[2].lower()
    return next((known for pattern, known in KNOWN_PROMPTS if re.search(pattern, name)), {})
