"""Mean dependency distance, where spaCy and an English model are installed."""

from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Protocol

import numpy as np

MODELS = ("en_core_web_sm", "en_core_web_md", "en_core_web_lg", "en_core_web_trf")
"""spaCy's English models, the fastest first."""
PARSED_MOST = 200
"""Texts of a data set: a parser reads a few thousand words a second."""
PARSED_CHARACTERS = 2000
"""Of a text."""


class Token(Protocol):
    """A word of a parsed text, as spaCy gives it."""

    i: int
    is_punct: bool
    is_space: bool

    @property
    def head(self) -> "Token":
        """The word it depends on; itself for the root of a sentence."""


def find_parser() -> Callable[[Sequence[str]], float | None] | None:
    """What measures texts; None where spaCy or each of its English models is missing."""
    model = next((name for name in MODELS if find_spec(name) is not None), None)
    if find_spec("spacy") is None or model is None:
        return None
    import spacy

    pipeline = spacy.load(model, exclude=["ner", "lemmatizer"])

    def parse(texts: Sequence[str]) -> float | None:
        some = (text[:PARSED_CHARACTERS] for text in texts[:PARSED_MOST])
        return mean_distance(token for document in pipeline.pipe(some) for token in document)

    return parse


def mean_distance(tokens: Iterable[Token]) -> float | None:
    """Mean number of places between a word and its head (Oya, 2011); roots and punctuation do not count."""
    distances = [
        abs(token.i - token.head.i)
        for token in tokens
        if token.head.i != token.i and not token.is_punct and not token.is_space
    ]
    return float(np.mean(distances)) if distances else None
