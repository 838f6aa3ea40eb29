"""Measures of retrieval without labels: split-half retrieval, in which one half of a text must find the other half.

Also here: exact nearest neighbours by dot product, artificial queries from stored rows, and counts of scripts.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.transforms.chain import Chain
from lathe.transforms.quality import row_slices
from lathe.transforms.vectors import FloatArray

MIN_WORDS = 4
"""Minimum number of words in a half; shorter halves say too little about the topic of the text."""
MIN_CHARACTERS = 12
"""Minimum number of characters in a half, for scripts without spaces between words."""
MIN_SPACELESS = 15
"""Minimum mean number of characters per word of a text that counts as written without spaces. Names and addresses can
be as long, so mostly ASCII texts are exempt."""
SCRIPT_CHARACTERS = 200
"""Number of leading characters of a text that determine its script."""
SCRIPTS = {"Cjk": "Chinese or Japanese", "Hiragana": "Chinese or Japanese", "Katakana": "Chinese or Japanese"}
"""Common name of scripts that occur together in a text, by the first word of their Unicode character names."""


@dataclass(frozen=True)
class TextHalves:
    """Vectors of the first halves and of the second halves of n texts, each `(n, d)`. Row i belongs to text i."""

    first: FloatArray
    second: FloatArray


def cut_in_two(text: str) -> tuple[str, str] | None:
    """Split a text into two halves between words, or between characters if it has no spaces. None if it is too short.

    A half needs `MIN_WORDS` words, or `MIN_CHARACTERS` characters in a text without spaces. Runs of white space become
    single spaces.
    """
    words = text.split()
    characters = sum(map(len, words))
    # Chinese and Japanese have no spaces: one "word" may be the whole text.
    if characters >= MIN_SPACELESS * len(words) and 2 * sum(map(str.isascii, text)) < len(text):
        if characters < 2 * MIN_CHARACTERS:
            return None
        joined = " ".join(words)
        return joined[: len(joined) // 2], joined[len(joined) // 2 :]
    if len(words) < 2 * MIN_WORDS:
        return None

    middle = len(words) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


def rank_halves(
    chain: Chain, halves: TextHalves, distractors: FloatArray | None = None, dimensions: int | None = None
) -> NDArray[np.float64]:
    """Search with each half of a text for its other half, and return 1/rank of the other half, `(n,)` in (0, 1].

    Both directions are averaged. Queries are transformed as queries of the chain, and documents are decoded codes if
    the chain ends in codes, as in a search over stored vectors. A document with the same score as the right document
    counts half towards the rank.

    Args:
        chain: fitted chain of transforms.
        halves: vectors of the halves of n texts.
        distractors: further vectors `(m, d)` that are searched together with the halves; None for none.
        dimensions: dimensions to cut a nested chain to; None for all.

    Raises:
        InputError: if a vector holds NaN or inf.
    """
    others = [] if distractors is None else [chain.floats(distractors, dimensions)]
    reciprocal = np.zeros(len(halves.first))
    for queries, documents in ((halves.first, halves.second), (halves.second, halves.first)):
        searched = np.concatenate([chain.floats(documents, dimensions), *others])
        reciprocal += _rank_one_way(*map(torch.from_numpy, (chain.transform_queries(queries, dimensions), searched)))
    return reciprocal / 2


def _rank_one_way(queries: torch.Tensor, documents: torch.Tensor) -> NDArray[np.float64]:
    """Compute 1/rank, by dot product, of document i among all documents for query i, `(n,)`. Ties count half."""
    reciprocal = np.empty(len(queries))
    for rows in row_slices(len(queries)):
        similarities = queries[rows] @ documents.T
        target = similarities[torch.arange(len(similarities)), torch.arange(rows.start, rows.stop)].unsqueeze(1)
        nearer = (similarities > target).sum(1).double()
        # The right document itself is among the equals, so one is subtracted.
        tied = (similarities == target).sum(1).double() - 1
        reciprocal[rows] = (1 / (1 + nearer + tied / 2)).numpy()

    return reciprocal


def find_nearest(
    queries: FloatArray, documents: FloatArray, count: int, excluded: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Find the documents with the highest dot products for each query, and return their rows `(n, count)`, best first.

    Args:
        queries: `(n, d)`.
        documents: `(m, d)`; all are returned if there are fewer than `count`.
        count: number of documents for each query.
        excluded: pairs of a query's row and a document's row to leave out of the query's results, `(e, 2)`; None for
            none.
    """
    searched = torch.from_numpy(documents)
    nearest = np.empty((len(queries), min(count, len(documents))), np.int64)
    for rows in row_slices(len(queries)):
        similarities = torch.from_numpy(queries[rows]) @ searched.T
        if excluded is not None:
            own = excluded[(excluded[:, 0] >= rows.start) & (excluded[:, 0] < rows.stop)]
            similarities[own[:, 0] - rows.start, own[:, 1]] = -torch.inf
        nearest[rows] = similarities.topk(nearest.shape[1], dim=1).indices.numpy()
    return nearest


def blur_rows(vectors: FloatArray, random: np.random.Generator) -> FloatArray:
    """Make artificial queries from stored rows `(n, d)`: add noise of the row's length to each row, and divide by √2.

    A graph index finds a stored row too easily, as the row is linked to its neighbours. With this noise the graph loses
    about as many hits as for real queries.
    """
    noise = random.standard_normal(vectors.shape, np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
    return np.asarray((vectors + noise * lengths) / np.sqrt(2), np.float32)


def compute_script_shares(texts: Sequence[str]) -> dict[str, float]:
    """Compute the share of the texts in each script, such as "Latin", by name in descending order.

    Texts without letters are not counted.
    """
    counts = Counter(script for text in texts if (script := _detect_script(text)) is not None)
    total = sum(counts.values())
    return {script: count / total for script, count in counts.most_common()}


def _detect_script(text: str) -> str | None:
    """Return the most frequent script among a text's first letters, such as "Latin". None without letters."""
    letters = [letter for letter in text[:SCRIPT_CHARACTERS] if letter.isalpha()]
    # A script is the first word of a letter's Unicode name.
    scripts = (unicodedata.name(letter, "other").split()[0].capitalize() for letter in letters)
    names = Counter(SCRIPTS.get(name, name) for name in scripts)
    return names.most_common(1)[0][0] if names else None
