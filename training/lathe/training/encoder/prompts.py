"""Chat templates and prompts: texts that a model expects around or before every text.

sentence-transformers wraps every text of an instruct model in the model's chat template unless the template is switched
off. A model that was not trained as an encoder with its template then gives unrelated texts similar vectors, because
most of the tokens are the template's. A model that was trained with prompts retrieves worse without them. The texts of
`KNOWN_PROMPTS` come from the model cards.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lathe.training.errors import EncoderError

MESSAGE, TEXT = "message", "text"
"""Names of sentence-transformers' modalities: a text in a chat template, and a plain one."""

TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
"""Files in which a tokenizer may store a chat template outside of its configuration."""

SETTINGS_FILE = "sentence_bert_config.json"
"""File of sentence-transformers that lists the modalities of a saved model."""


def uses_chat_template(model: Any) -> bool:
    """Return whether a loaded `SentenceTransformer` wraps plain texts in its tokenizer's chat template."""
    return MESSAGE in getattr(next(iter(model)), "modality_config", {})


def remove_chat_template(model: Any, name: str) -> None:
    """Switch off the chat template of a loaded `SentenceTransformer`, in place.

    A model without a template stays unchanged. A model that reads only messages raises.

    Args:
        model: the `SentenceTransformer`.
        name: name of the encoder, for messages.

    Raises:
        EncoderError: if the model reads only messages, not plain texts.
    """
    modalities = getattr(next(iter(model)), "modality_config", {})
    if MESSAGE in modalities and TEXT not in modalities:
        raise EncoderError(f"{name} reads messages only, so chat_template cannot be off: leave chat_template out")
    modalities.pop(MESSAGE, None)


def count_template_tokens(model: Any) -> int:
    """Count the tokens that a `SentenceTransformer`'s chat template adds to each text.

    Without a template, the count is 0.
    """
    if not uses_chat_template(model):
        return 0
    # Tokens of the shortest text in excess of its plain tokenization come from the template.
    plain = model.tokenizer(["."], truncation=False, verbose=False)["input_ids"][0]
    return max(int(model.preprocess(["."])["input_ids"].shape[-1]) - len(plain), 0)


def describe_chat_template(name: str, tokens: int | None = None) -> str:
    """Return a warning that an encoder wraps its texts in a chat template, with the setting that switches it off.

    Args:
        name: name of the encoder.
        tokens: tokens that the template adds to each text; None if unknown.
    """
    added = "" if tokens is None else f", {tokens} tokens more each"
    return (
        f"{name} wraps its texts in the chat template of an instruct model{added}; unless it was trained with that, "
        "unrelated texts become alike: set chat_template of this encoder to off, or to on to keep it without a warning"
    )


def find_chat_template(read: Callable[[str], bytes | None]) -> bool:
    """Return whether a model would wrap its texts in a chat template, judged by its files without loading the model.

    If modules.json exists, the model's list of modalities decides; a model without that list was saved by an earlier
    version and has no template. Otherwise the model has a template if its tokenizer has one.

    Args:
        read: returns the content of one of the model's files by its relative path; None if there is no such file.
    """
    modules = _parse(read("modules.json"))
    if isinstance(modules, list) and modules:
        saved = _parse(read(str(Path(modules[0].get("path", "")) / SETTINGS_FILE)))
        return isinstance(saved, dict) and MESSAGE in (saved.get("modality_config") or {})
    if any(read(file) is not None for file in TEMPLATE_FILES):
        return True

    tokenizer = _parse(read("tokenizer_config.json"))
    return isinstance(tokenizer, dict) and bool(tokenizer.get("chat_template"))


def _parse(content: bytes | None) -> Any:
    """Parse a JSON file. The result is None without a file, or for invalid JSON, which loading the model reports."""
    try:
        return None if content is None else json.loads(content)
    except (ValueError, RecursionError):
        return None


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
"""Patterns of model names, in lower case, and the prompts of these models. The first pattern that matches is used."""


def find_missing_prompts(model: str, prompts: Mapping[str, str]) -> Mapping[str, str]:
    """Return the prompts, by name, that a model is known to need and does not have.

    The model is recognized by its name, with `KNOWN_PROMPTS`. The result is empty if the model has any prompt that is
    not empty, or its name is not known.

    Args:
        model: hub id or folder of the model.
        prompts: prompts that the model has, from its folder and the settings.
    """
    if any(prompts.values()):
        return {}
    name = model.rstrip("/").rpartition("/")[2].lower()
    return next((known for pattern, known in KNOWN_PROMPTS if re.search(pattern, name)), {})
