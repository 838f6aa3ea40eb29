"""Usefulness without labels: each text is cut in two, and the halves must find each other."""

import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from transforms.quality import anchor_blocks
from transforms.statistics import unit_rows
from transforms.vectors import FloatArray, require_finite

WORDS_LEAST = 4
"""Of a half: fewer say too little of what the text is about."""
CHARACTERS_LEAST = 12
"""Of a half, in scripts that put no spaces between words."""
SPACELESS = 15
"""Mean characters of a word from which on a text is taken for one without spaces; names and addresses are as long, but
ASCII."""
LETTERS_LOOKED_AT = 200
SCRIPTS = {"Cjk": "Chinese or Japanese", "Hiragana": "Chinese or Japanese", "Katakana": "Chinese or Japanese"}
"""Scripts that one text mixes."""


def halves(text: str) -> tuple[str, str] | None:
    """A text cut in two between words; None where a half would say too little."""
    words = text.split()
    characters = sum(map(len, words))
    if characters >= SPACELESS * len(words) and not mostly_ascii(text):
        if characters < 2 * CHARACTERS_LEAST:
            return None
        joined = " ".join(words)
        return joined[: len(joined) // 2], joined[len(joined) // 2 :]
    if len(words) < 2 * WORDS_LEAST:
        return None
    middle = len(words) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


def mostly_ascii(text: str) -> bool:
    """Whether half of the characters or more are."""
    return 2 * sum(map(str.isascii, text)) >= len(text)


def reciprocal_ranks(first: FloatArray, second: FloatArray) -> NDArray[np.float64]:
    """1/rank of each text's own other half among all other halves, by cosine, both ways averaged.

    Args:
        first: `(n, d)` vectors of the first halves.
        second: `(n, d)` of the second ones.

    Returns:
        `(n,)`, in (0, 1]; halves as near as the own one count half before it.

    Raises:
        InputError: for NaN or inf.
    """
    require_finite(first)
    require_finite(second)
    x, y = (unit_rows(torch.from_numpy(np.asarray(side, np.float32))) for side in (first, second))
    return (one_way(x, y) + one_way(y, x)) / 2


def one_way(queries: torch.Tensor, documents: torch.Tensor) -> NDArray[np.float64]:
    """1/rank of the document of each query's own row."""
    found = np.empty(len(queries))
    for rows in anchor_blocks(len(queries)):
        similarities = queries[rows] @ documents.T
        own = similarities[torch.arange(len(similarities)), torch.arange(rows.start, rows.stop)].unsqueeze(1)
        nearer = (similarities > own).sum(1).double()
        alike = (similarities == own).sum(1).double() - 1
        found[rows] = (1 / (1 + nearer + alike / 2)).numpy()
    return found


def scripts(texts: Sequence[str]) -> dict[str, float]:
    """Shares of texts by the script most of their letters are in, the largest first; without those of no letters."""
    found = Counter(script for text in texts if (script := script_of(text)) is not None)
    total = sum(found.values())
    return {script: count / total for script, count in found.most_common()}


def first_name(letter: str) -> str:
    """The first word of a letter's name, which is its script's."""
    return unicodedata.name(letter, "other").split()[0].capitalize()


def script_of(text: str) -> str | None:
    """Such as Latin or Cyrillic; None without letters."""
    letters = [letter for letter in text[:LETTERS_LOOKED_AT] if letter.isalpha()]
    names = Counter(SCRIPTS.get(name, name) for name in map(first_name, letters))
    return names.most_common(1)[0][0] if names else None
