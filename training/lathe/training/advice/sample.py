"""Vectors that the advice is measured on: rows to fit on, held-out rows, and the halves of their texts.

Texts on which the encoder fails are left out.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import EncoderError, UpstreamError
from lathe.training.measures import TextHalves, count_scripts, cut_in_two
from lathe.training.sources.row_sample import RowSample
from lathe.transforms.progress import Progress
from lathe.transforms.vectors import FloatArray

EncodeTexts = Callable[[Sequence[str]], FloatArray]
"""Function of n texts that returns their vectors `(n, d)`."""

HELDOUT_SHARE = 0.2
"""Share of the rows that are held out in a large sample."""
SMALL_HELDOUT = 1000
"""Number of held-out rows up to which half of a small sample is held out, since measuring needs more rows than fitting
one direction."""
MAX_HELDOUT = 4000
"""Maximum number of held-out rows."""
MIN_HALVES = 30
"""Minimum number of texts cut in two; with fewer, the interval of a gain is unreliable."""
SCRIPT_TEXTS = 1000
"""Number of texts whose script is determined."""
BLOCK_TEXTS = 256
"""Number of texts that are encoded between two reports of progress."""


@dataclass(frozen=True)
class Sample:
    """Vectors of the sampled rows, split into rows to fit on and held-out rows.

    Attributes:
        row_sample: the sampled rows.
        fit: vectors to fit on, `(n, d)`.
        heldout: vectors to measure on, `(m, d)`.
        cut: number of held-out texts that can be cut in two.
        halves: vectors of the halves of these texts; None if they are fewer than `MIN_HALVES`, or none were asked for.
        scripts: share of the texts in each script, largest first; empty for a source of vectors.
    """

    row_sample: RowSample
    fit: FloatArray
    heldout: FloatArray
    cut: int
    halves: TextHalves | None
    scripts: dict[str, float]

    @property
    def dimensions(self) -> int:
        """Number of dimensions of the vectors."""
        return int(self.fit.shape[1])


def count_heldout(rows: int) -> int:
    """Return the number of sampled rows that are held out: a fifth, half of a small sample, at most `MAX_HELDOUT`."""
    return min(max(int(HELDOUT_SHARE * rows), min(SMALL_HELDOUT, rows // 2)), MAX_HELDOUT)


def list_texts_to_encode(row_sample: RowSample, with_halves: bool = True) -> list[str]:
    """Return the texts whose vectors `build_text_sample` needs.

    They are all sampled texts, and with `with_halves`, both halves of each held-out text that can be cut in two.
    """
    if not with_halves:
        return row_sample.texts
    pairs = [cut for text in row_sample.texts[: count_heldout(len(row_sample))] if (cut := cut_in_two(text))]
    return [*row_sample.texts, *(half for pair in pairs for half in pair)]


def build_text_sample(
    row_sample: RowSample, encode: EncodeTexts, failed: Collection[str] = frozenset(), with_halves: bool = True
) -> Sample:
    """Split the sampled texts into held-out texts and texts to fit on, and return the vectors of both.

    The first texts are held out, because sampled rows are in random order. With `with_halves`, the vectors of the
    halves of held-out texts are added.

    Args:
        row_sample: sampled texts.
        encode: returns the vectors of texts and of halves.
        failed: texts and halves without a vector; they are left out.
        with_halves: whether split-half retrieval will be measured.
    """
    held_out = count_heldout(len(row_sample))
    heldout, fit = (
        [text for text in part if text not in failed]
        for part in (row_sample.texts[:held_out], row_sample.texts[held_out:])
    )
    cuts = [cuts for text in heldout if (cuts := cut_in_two(text))] if with_halves else []
    pairs = [pair for pair in cuts if pair[0] not in failed and pair[1] not in failed]
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))

    return Sample(
        row_sample=replace(row_sample, texts=[*heldout, *fit]),
        fit=encode(fit),
        heldout=encode(heldout),
        cut=len(pairs),
        halves=TextHalves(encode(first), encode(second)) if len(pairs) >= MIN_HALVES else None,
        scripts=count_scripts(row_sample.texts[:SCRIPT_TEXTS]),
    )


def build_vector_sample(row_sample: RowSample, vectors: FloatArray) -> Sample:
    """Split sampled vectors `(n, d)` into held-out rows, the first ones, and rows to fit on.

    The sample has no text halves.
    """
    held_out = count_heldout(len(row_sample))
    return Sample(row_sample, vectors[held_out:], vectors[:held_out], 0, None, {})


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
        """Encode distinct texts in blocks, and store their vectors.

        Texts on which the encoder fails are recorded in `failed` with the reason.

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
        """Return the stored vectors `(n, d)` of texts that were encoded before.

        Raises:
            KeyError: for a text that has none.
        """
        if not texts:
            return np.empty((0, self.encoder.dimensions), np.float32)
        return np.stack([self._rows[text] for text in texts])

    def list_remarks(self) -> Iterator[str]:
        """Yield one sentence if the encoder failed on texts, with their number and the first reason."""
        if self.failed:
            reason = next(iter(self.failed.values()))
            yield f"The encoder fails on {len(self.failed):,} texts or halves of texts, which were left out: {reason}."


def _encode_leniently(encoder: TextEncoder, texts: Sequence[str]) -> tuple[FloatArray, dict[str, str]]:
    """Encode texts in one call, or one by one if that raises.

    A text on which the encoder raises gets a row of NaN. A vector with NaN or inf is a failure too. Errors of an
    embeddings API are raised, since no text is to blame.

    Returns:
        The vectors `(n, d)`, and the reasons of failures by text.
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
