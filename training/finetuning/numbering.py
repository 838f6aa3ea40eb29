"""Texts as numbers that are equal where the texts are."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def identical_texts(anchors: list[str], positives: list[str]) -> NDArray[np.int64]:
    """Numbers of texts `(n, 2)`, equal where the texts are."""
    numbers = [{text: number for number, text in enumerate(dict.fromkeys(texts))} for texts in (anchors, positives)]
    return np.array([[numbers[0][a], numbers[1][p]] for a, p in zip(anchors, positives, strict=True)], np.int64)


def numbered_negatives(positives: list[str], negatives: Sequence[tuple[str, ...]]) -> NDArray[np.int64] | None:
    """Numbers of each pair's hard negatives `(n, k)`, as `identical_texts` numbers positives; −1 where it has fewer.

    None where no pair has any.
    """
    most = max(map(len, negatives), default=0)
    if not most:
        return None
    texts = [*positives, *(text for some in negatives for text in some)]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    found = np.full((len(negatives), most), -1, np.int64)
    for row, some in zip(found, negatives, strict=True):
        row[: len(some)] = [numbers[text] for text in some]
    return found
