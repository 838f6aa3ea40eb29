"""Text ids: integers that are equal if and only if the texts are."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def assign_text_ids(anchors: list[str], positives: list[str]) -> NDArray[np.int64]:
    """Return the text ids of each pair's anchor and positive, `(n, 2)`; within a column, equal texts have equal ids."""
    numbers = [{text: number for number, text in enumerate(dict.fromkeys(texts))} for texts in (anchors, positives)]
    return np.array([[numbers[0][a], numbers[1][p]] for a, p in zip(anchors, positives, strict=True)], np.int64)


def assign_negative_ids(positives: list[str], negatives: Sequence[tuple[str, ...]]) -> NDArray[np.int64] | None:
    """Return the text ids of each pair's hard negatives, `(n, k)`, padded with −1; None if no pair has any.

    A negative equal to a positive gets the id that `assign_text_ids` gives the positive.
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
