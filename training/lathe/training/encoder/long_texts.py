"""Encoding of texts longer than a model reads, as the mean of the vectors of overlapping chunks.

    text    ├─────────────────────────────────────────────┤
    chunks  ├───────── tokens read ────────┤
                                      ├──────────────────────┤   the last may be shorter
                                      └ overlap ┘

A text's vector is the mean of its chunks' vectors, weighted by their tokens, and normalized if vectors are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.training.errors import EncoderError, TooLongError

OVERLAP = 8
"""The overlap of two neighbouring chunks is the number of tokens of a chunk divided by this number."""

SEARCHED = 4
"""A chunk begins and ends between words if a word ends within the chunk's number of tokens divided by this number."""

MARGIN_TOKENS = 2
"""Tokens by which chunks are shorter than what the model reads: a part of a text may have more tokens alone."""

MIN_CHUNK_TOKENS = 8
"""Minimum tokens that a prompt must leave to a chunk."""

WINDOW_CHARACTERS = 50_000
"""Characters of a text that are tokenized at once."""

MAX_LONG_TOKENS = 32_768
"""Maximum tokens that a server encodes of a text as a mean, overlaps not counted: some 25,000 words. More would keep a
worker from other requests for too long."""

MAX_LONG_CHARACTERS = 32 * MAX_LONG_TOKENS
"""Maximum characters of a text that a server encodes as a mean: a longer text is refused before it is tokenized."""


@dataclass(frozen=True)
class Pieces:
    """Texts divided into chunks, with the text that each chunk belongs to.

    Attributes:
        texts: chunks of all texts, in order.
        owners: position of each chunk's text `(c,)`.
        count: number of texts.
    """

    texts: list[str]
    owners: NDArray[np.int64]
    count: int

    @classmethod
    def whole(cls, texts: Sequence[str]) -> "Pieces":
        """Build pieces in which each text is a single chunk."""
        return cls(list(texts), np.arange(len(texts)), len(texts))

    def join(
        self, vectors: torch.Tensor, tokens: NDArray[np.int64], normalize: bool
    ) -> tuple[torch.Tensor, NDArray[np.int64]]:
        """Combine the vectors and token counts of chunks into vectors and token counts of the texts.

        A text's vector is the mean of its chunks' vectors, weighted by their tokens. If each text is a single chunk,
        `vectors` and `tokens` are returned unchanged.

        Args:
            vectors: vectors of the chunks `(c, d)`.
            tokens: tokens of the chunks `(c,)`.
            normalize: whether means are L2-normalized; vectors of single chunks stay as they are.

        Returns:
            The vectors `(n, d)` and the token counts `(n,)`.
        """
        if len(self.texts) == self.count:
            return vectors, tokens

        sums = np.bincount(self.owners, tokens, self.count).astype(np.int64)
        # A text's vector is Σ tokens_i · v_i / Σ tokens_i over its chunks: weights (c,), means (n, d).
        weights = torch.from_numpy(tokens / np.maximum(sums, 1)[self.owners]).to(vectors)
        owners = torch.from_numpy(self.owners).to(vectors.device)
        means = torch.zeros((self.count, vectors.shape[1]), dtype=vectors.dtype, device=vectors.device)
        means.index_add_(0, owners, vectors * weights[:, None])

        if normalize:
            divided = torch.bincount(owners, minlength=self.count) > 1
            means[divided] = torch.nn.functional.normalize(means[divided], dim=1)

        return means, sums

    def join_cut(self, cut: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of tokens of each text that the model did not read `(n,)`.

        If any text is divided into chunks, all numbers are 0, because chunks are read in full.

        Args:
            cut: tokens of each chunk that were not read `(c,)`.
        """
        return cut if len(self.texts) == self.count else np.zeros(self.count, dtype=np.int64)


def split_texts(
    texts: Sequence[str],
    tokenizer: Any,
    max_tokens: int,
    encoder: str,
    positions: Sequence[int] | None,
    limit: int | None,
) -> Pieces:
    """Divide texts into overlapping chunks of at most `max_tokens` tokens. A text above `limit` tokens raises.

    A text with fewer tokens is one chunk, unchanged. A text above `limit` raises before all of it is tokenized.

    Args:
        texts: the texts.
        tokenizer: a transformers tokenizer that reports the offsets of tokens.
        max_tokens: tokens of a chunk, without special tokens and prompt.
        encoder: name of the encoder, for messages.
        positions: positions of the texts in the user's input, for messages; None counts them from 0.
        limit: maximum tokens of a text; None allows any number.

    Returns:
        The chunks, with the position of the text that each belongs to.

    Raises:
        TooLongError: if a text has more tokens than the limit.
        EncoderError: if the prompt leaves too few tokens, or the tokenizer reports no offsets.
    """
    if max_tokens < MIN_CHUNK_TOKENS:
        raise EncoderError(f"the prompt leaves {max(max_tokens, 0)} tokens to a chunk of {encoder}: shorten the prompt")

    chunks: list[str] = []
    owners: list[int] = []
    for row, text in enumerate(texts):
        budget = limit
        for chunk, tokens in _split_text(text, tokenizer, max_tokens, encoder):
            chunks.append(chunk)
            owners.append(row)
            # Counted while dividing, so that a text above the limit is refused before all of it is tokenized.
            if budget is not None:
                budget -= tokens
                if budget < 0:
                    position = row if positions is None else positions[row]
                    raise TooLongError(
                        f"input {position} has more than {limit:,} tokens, the maximum with long_text mean; divide it"
                    )

    return Pieces(chunks, np.array(owners, dtype=np.int64), len(texts))


def _split_text(text: str, tokenizer: Any, max_tokens: int, encoder: str) -> Iterator[tuple[str, int]]:
    """Yield the overlapping chunks of a text, each chunk with the number of its tokens that were in no earlier chunk.

    A text that is not tokenized, because it has at most `max_tokens` bytes, is one chunk with the number 0.
    """
    if len(text.encode("utf-8", "surrogatepass")) <= max_tokens:  # a token has a byte at least
        yield text, 0
        return

    start, divided, overlap = 0, False, max_tokens // OVERLAP
    size = max(WINDOW_CHARACTERS, 32 * max_tokens)
    while start < len(text):
        window = text[start : start + size]
        is_last = start + size >= len(text)
        spans, words = _tokenize(tokenizer, window, encoder)
        first = covered = 0

        while len(spans) - first > max_tokens:
            stop = _find_word_start(words, first + max_tokens, max_tokens // SEARCHED)
            yield window[spans[first][0] : spans[stop - 1][1]], stop - covered
            divided, covered = True, stop
            # The next chunk begins within the last one, by the overlap, at the start of a word.
            first = _find_word_start(words, stop - overlap, max_tokens // SEARCHED)

        if is_last:
            if len(spans) > covered or not divided:
                yield (window[spans[first][0] :] if divided else window), len(spans) - covered
            return

        if first == 0 and spans:  # nearly all white space, or one long word
            yield window[spans[0][0] : spans[-1][1]], len(spans)
            divided = True

        start += spans[first][0] if first else len(window)


def _find_word_start(words: Sequence[int | None], token: int, reach: int) -> int:
    """Return the index of the first token of the word that a token belongs to.

    If the word has no start within `reach` tokens before, or the token's word is unknown, the result is `token` itself.
    """
    start = token
    while start > token - reach and start > 1 and words[start] is not None and words[start] == words[start - 1]:
        start -= 1
    return start if words[start] != words[start - 1] else token


def _tokenize(tokenizer: Any, text: str, encoder: str) -> tuple[list[tuple[int, int]], list[int | None]]:
    """Return the start and end of each token of a text, in characters, and the index of the word of each token.

    A tokenizer that does not report offsets raises `EncoderError`.
    """
    encoded = tokenizer([text], add_special_tokens=False, truncation=False, verbose=False)
    if not encoded.encodings:  # a tokenizer written in Python
        raise EncoderError(f"the tokenizer of {encoder} does not report offsets, which long_text mean needs")
    return encoded.encodings[0].offsets, encoded.encodings[0].word_ids
