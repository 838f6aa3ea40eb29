"""Texts that measurements send to a server or an encoder."""

import numpy as np

from lathe.training.sources.source import open_source


def read_texts(written: str, count: int) -> list[str]:
    """Return `count` different texts of a source, in the same random order every time.

    All are returned if there are fewer.
    """
    texts: dict[str, None] = {}
    for batch in open_source(written).batches():
        texts |= dict.fromkeys(str(text) for text in batch.values if str(text).strip())
        if len(texts) >= 4 * count:
            break
    order = np.random.default_rng(0).permutation(len(texts))[:count]
    listed = list(texts)
    return [listed[index] for index in order]
