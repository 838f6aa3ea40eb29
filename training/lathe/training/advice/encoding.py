"""Encoding of sampled texts, leaving out those on which the encoder fails."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import EncoderError, UpstreamError
from lathe.transforms.progress import Progress
from lathe.transforms.vectors import FloatArray

BLOCK_TEXTS = 256
"""Number of texts that are encoded between two reports of progress."""


class SampleEncoder:
    """Encoder of a sample that records the texts on which it fails.

    An encoder that stores its vectors, as `open_encoder` returns one, does not encode them again after a killed run.

    Args:
        encoder: encoder of the texts.

    Attributes:
        failed: reasons why texts could not be encoded, by text.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = encoder
        self.failed: dict[str, str] = {}
        self._rows: dict[str, NDArray[np.float32]] = {}

    def encode(self, texts: Sequence[str], on_progress: Progress) -> None:
        """Encode distinct texts in blocks. Texts on which the encoder fails are recorded in `failed`.

        Args:
            texts: texts to encode.
            on_progress: called with progress in [0, 1] and a message.

        Raises:
            EncoderError: if the encoder fails on every text.
        """
        distinct = list(dict.fromkeys(texts))
        for start in range(0, len(distinct), BLOCK_TEXTS):
            on_progress(start / len(distinct), f"{start:,} of {len(distinct):,} texts encoded")
            block = distinct[start : start + BLOCK_TEXTS]
            vectors, failed = _encode_leniently(self.encoder, block)
            self.failed |= failed
            self._rows |= {text: row for text, row in zip(block, vectors, strict=True) if text not in failed}
        if self.failed and not self._rows:
            raise EncoderError(f"{self.encoder.name} fails on every text: {next(iter(self.failed.values()))}")

    def vectors(self, texts: Sequence[str]) -> FloatArray:
        """Return the vectors `(n, d)` of encoded texts.

        Raises:
            KeyError: for a text that has none.
        """
        if not texts:
            return np.empty((0, self.encoder.dimensions), np.float32)
        return np.stack([self._rows[text] for text in texts])

    def list_remarks(self) -> Iterator[str]:
        """Yield a sentence if the encoder failed on texts, with their number and the first reason."""
        if self.failed:
            why = next(iter(self.failed.values()))
            yield f"The encoder fails on {len(self.failed):,} texts or halves of texts, which were left out: {why}."


def _encode_leniently(encoder: TextEncoder, texts: Sequence[str]) -> tuple[FloatArray, dict[str, str]]:
    """Encode texts in one call, or one by one if that raises.
    Return the vectors `(n, d)` and the reasons of failures, by text.

    A text on which the encoder raises gets a row of NaN. A vector with NaN or inf is a failure too.
    """
    try:
        vectors = encoder.encode(texts).vectors
    except UpstreamError:  # no text is to blame
        raise
    except Exception as error:  # models raise anything; which text it was is found by trying each
        if len(texts) == 1:
            nan = np.full((1, encoder.dimensions), np.nan, np.float32)
            return nan, {texts[0]: f"{type(error).__name__}: {error}"}
        each = [_encode_leniently(encoder, [text]) for text in texts]
        reasons = {text: reason for _, failed in each for text, reason in failed.items()}
        return np.concatenate([vector for vector, _ in each]), reasons
    finite = np.asarray(np.isfinite(vectors).all(axis=1))
    return vectors, {text: "NaN or inf" for text, is_good in zip(texts, finite, strict=True) if not is_good}
