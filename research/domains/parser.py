"""Mean dependency distance, available where spaCy and an English model are installed."""

from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Protocol

import numpy as np

MODELS = ("en_core_web_sm", "en_core_web_md", "en_core_web_lg", "en_core_web_trf")
"""Names of spaCy's English models, the fastest first."""
MAX_PARSED = 200
"""Maximum number of parsed texts per data set, because a parser reads only a few thousand words a second."""
MAX_PARSED_CHARACTERS = 2000
"""Maximum number of parsed characters per text."""


class Token(Protocol):
    """Protocol of a word in a parsed text, as spaCy provides it."""

    i: int
    is_punct: bool
    is_space: bool

    @property
    def head(self) -> "Token":
        """Word that this word depends on.

        The root of a sentence is its own head.
        """


def find_parser() -> Callable[[Sequence[str]], float | None] | None:
    """Load spaCy's fastest installed English model and return a function from texts to mean dependency distance.

    Returns None if spaCy or all of its English models are missing.
    """
    model = next((name for name in MODELS if find_spec(name) is not None), None)
    if find_spec("spacy") is None or model is None:
        return None
    import spacy

    pipeline = spacy.load(model, exclude=["ner", "lemmatizer"])

    def parse(texts: Sequence[str]) -> float | None:
        """Return the mean dependency distance of the first 200 texts, each cut to 2,000 characters."""
        some = (text[:MAX_PARSED_CHARACTERS] for text in texts[:MAX_PARSED])
        return mean_distance(token for document in pipeline.pipe(some) for token in document)

    return parse


def mean_distance(tokens: Iterable[Token]) -> float | None:
    """Return the mean number of positions between a word and its head (Oya, 2011).

    The result is None if no word counts. Roots, punctuation and whitespace do not count.
    """
    distances = [
        abs(token.i - token.head.i)
        for token in tokens
        if token.head.i != token.i and not token.is_punct and not token.is_space
    ]
    return float(np.mean(distances)) if distances else None
