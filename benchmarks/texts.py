"""Texts that measurements send to a server or an encoder."""

import numpy as np

from lathe.training.sources.source import open_source


def read_texts(written: str, count: int) -> list[str]:
    """Return `count` different texts of a source, or all if there are fewer, in the same random order every time."""
    found: dict[str, None] = {}
    for batch in open_source(written).batches():
        found |= dict.fromkeys(str(text) for text in batch.values if str(text).strip())
        if len(found) >= 4 * count:
            break
    order = np.random.default_rng(0).permutation(len(found))[:count]
    listed = list(found)
    return [listed[index] for index in order]
