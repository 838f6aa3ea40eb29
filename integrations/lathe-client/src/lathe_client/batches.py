"""Checks of texts, vectors and ids, and their division into the parts that one request each sends."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lathe_client.text_encoding import encode_text

DEFAULT_BATCH_SIZE = 256
"""Default of the maximum number of texts in a request: it fills the server's batches; the server takes up to 2,048."""
MAX_BODY_BYTES = 16_000_000
"""Maximum bytes of the texts or vectors of a request; the server accepts bodies of 32 MB unless it is set otherwise."""
MAX_ROWS = 8192
"""Maximum vectors or ids of a request, as the server has it unless it is set otherwise."""


def require_ids(ids: Sequence[str]) -> Sequence[str]:
    """Return the ids unchanged, once it is checked that they are a list of Unicode texts.

    Raises:
        TypeError: for a single string, each of whose characters would be taken as an id.
        InvalidTextError: for an id that is not Unicode; it is named by its position.
    """
    if isinstance(ids, str):
        raise TypeError(f"ids is the text {ids!r}; it must be a list of ids")
    for position, name in enumerate(ids):
        encode_text(str(name), f"ids[{position}]")
    return ids


def list_texts(texts: str | Sequence[str]) -> list[str]:
    """Return one text or several as a list. Raise `ValueError` if there are none."""
    listed = [texts] if isinstance(texts, str) else list(texts)
    if not listed:
        raise ValueError("texts must not be empty")
    return listed


def as_rows(vectors: ArrayLike) -> NDArray[np.float32]:
    """Return vectors as an array `(n, d)` in float32.

    Raises:
        ValueError: for another shape, or without rows.
    """
    rows = np.ascontiguousarray(vectors, np.float32)
    if rows.ndim != 2 or not rows.size:
        raise ValueError(f"vectors must have the shape (n, d) with n and d of at least 1, not {rows.shape}")
    return rows


def split_texts(texts: Sequence[str], max_texts: int) -> list[slice]:
    """Return consecutive slices of the texts, each of at most `max_texts` texts and `MAX_BODY_BYTES` bytes.

    A text of more bytes is a part of its own.

    Raises:
        InvalidTextError: for a text that is not Unicode; it is named by its position.
    """
    sizes = [len(encode_text(text, f"texts[{position}]")) for position, text in enumerate(texts)]
    return list(_iterate_parts(sizes, max_texts))


def split_rows(rows: NDArray[np.float32]) -> list[slice]:
    """Return consecutive slices of the rows, each of at most `MAX_ROWS` rows and `MAX_BODY_BYTES` bytes."""
    return list(_iterate_parts([rows[0].nbytes] * len(rows), MAX_ROWS))


def split_ids(ids: Sequence[str]) -> list[slice]:
    """Return consecutive slices of the ids, each of at most `MAX_ROWS` ids."""
    return [slice(start, start + MAX_ROWS) for start in range(0, len(ids), MAX_ROWS)]


def _iterate_parts(sizes: Sequence[int], max_items: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `max_items` items.

    A slice of several items has at most `MAX_BODY_BYTES` bytes.
    """
    start, total = 0, 0
    for position, size in enumerate(sizes):
        if position > start and (position - start >= max_items or total + size > MAX_BODY_BYTES):
            yield slice(start, position)
            start, total = position, 0
        total += size
    yield slice(start, len(sizes))
