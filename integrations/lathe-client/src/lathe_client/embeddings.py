"""Vectors with the space that they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe_client.errors import SpaceMismatchError


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Vectors of one answer, or of several that were joined, with the id of their embedding space.

    Attributes:
        vectors: `(n, k)`; float32 unless another `output_dtype` was asked for.
        space_id: id of the vector space. Only vectors with equal ids may be compared.
        chain: `NAME@VERSION` of the chain that produced the vectors, or `none`.
        input_type: side of a search: `query` or `document`.
        output_dtype: encoding of the values: `float`, `float16`, `int8`, `uint8`, `binary`, `ubinary` or
            `codes`.
        tokens: number of tokens that the encoder read; None for reduced vectors.
        tokens_cut: number of tokens that the encoder did not read, because texts were too long; None as above.
    """

    vectors: NDArray[Any]
    space_id: str
    chain: str
    input_type: str
    output_dtype: str
    tokens: int | None = None
    tokens_cut: int | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    def require_space(self, other: "Embeddings | str") -> None:
        """Raise `SpaceMismatchError` unless other vectors, or a space id, are of these vectors' embedding space."""
        require_same_space([self.space_id, other if isinstance(other, str) else other.space_id])


def join_embeddings(parts: Sequence[Embeddings]) -> Embeddings:
    """Return the vectors of several answers joined in order, with the sums of their token counts.

    Raises:
        SpaceMismatchError: if they belong to different spaces, because the server's chain changed between two answers.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    require_same_space([part.space_id for part in parts])
    return Embeddings(
        np.concatenate([part.vectors for part in parts]),
        first.space_id,
        first.chain,
        first.input_type,
        first.output_dtype,
        _sum_counts([part.tokens for part in parts]),
        _sum_counts([part.tokens_cut for part in parts]),
    )


def require_same_space(space_ids: Sequence[str]) -> None:
    """Raise `SpaceMismatchError` unless all space ids are equal."""
    spaces = list(dict.fromkeys(space_ids))
    if len(spaces) > 1:
        raise SpaceMismatchError(
            f"the vectors belong to different spaces: {', '.join(spaces)}. Embed them again by one chain, and name its "
            "version (chain='NAME@VERSION') if the live version may change meanwhile"
        )


def _sum_counts(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
