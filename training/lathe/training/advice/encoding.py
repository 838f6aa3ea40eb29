"""Encoding of sampled texts into a store that survives a killed run.

Texts on which the encoder fails are left out.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lathe.training.advice.sample import MIN_HALVES, OutOfDomainVectors, TextHalves, cut_texts_in_two
from lathe.training.advice.sample_size import MIN_ROWS
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import EncoderError, UpstreamError
from lathe.training.evaluation.store import VectorStore, text_key
from lathe.training.fitting.out_of_domain import OutOfDomainTexts, built_in_cache_key, load_or_encode
from lathe.training.sources.source import open_source
from lathe.transforms.progress import Progress
from lathe.transforms.vectors import FloatArray

BLOCK_TEXTS = 1024
"""Number of texts that are encoded between two writes to disk, so the most that a killed run loses."""


class SampleEncoder:
    """Encoder with a store of vectors on disk.

    It records texts on which the encoder fails.

    Args:
        encoder: encoder of the texts.
        folder: folder of the store.

    Attributes:
        store: stored vectors, by text.
        failed: reasons why texts could not be encoded, by text.
    """

    def __init__(self, encoder: TextEncoder, folder: Path) -> None:
        self.encoder = encoder
        self.store = VectorStore(folder / "texts", encoder.dimensions)
        self.failed: dict[str, str] = {}

    def encode(self, texts: Sequence[str], on_progress: Progress) -> None:
        """Encode the texts that the store lacks, in blocks, and write their vectors to it.
        Texts on which the encoder fails are recorded in `failed`.

        Args:
            texts: texts to encode.
            on_progress: called with progress in [0, 1] and a message.

        Raises:
            EncoderError: if the encoder fails on every text.
        """
        missing = list({text_key(text): text for text in texts if text_key(text) not in self.store}.values())
        for start in range(0, len(missing), BLOCK_TEXTS):
            on_progress(start / len(missing), f"{start:,} of {len(missing):,} texts encoded")
            self._encode_block(missing[start : start + BLOCK_TEXTS])
        if self.failed and len(self.store) == 0:
            raise EncoderError(f"{self.encoder.name} fails on every text: {next(iter(self.failed.values()))}")

    def _encode_block(self, texts: Sequence[str]) -> None:
        """Encode distinct texts and add their finite vectors to the store.
        The reasons of failing texts are added to `failed`.
        """
        vectors, failed = _encode_leniently(self.encoder, texts)
        self.failed |= failed
        good = [place for place, text in enumerate(texts) if text not in failed]
        self.store.add([text_key(texts[place]) for place in good], vectors[good])

    def vectors(self, texts: Sequence[str]) -> FloatArray:
        """Return the stored vectors of encoded texts, `(n, d)` float32.

        Raises:
            KeyError: for a text that has none.
        """
        return self.store.get([text_key(text) for text in texts])

    def list_remarks(self) -> Iterator[str]:
        """Yield a sentence if the encoder failed on texts, with their number and the first reason."""
        if self.failed:
            why = next(iter(self.failed.values()))
            yield f"The encoder fails on {len(self.failed):,} texts or halves of texts, which were left out: {why}."


def encode_out_of_domain(
    written: str, encoder: TextEncoder, workspace: Path
) -> tuple[OutOfDomainVectors | None, list[str]]:
    """Encode a built-in out-of-domain corpus and the halves of its texts, or load their vectors from the cache.
    Return the vectors, or None if too few texts could be encoded, and sentences on the texts that were left out.

    Vectors are cached in the folder, once for each encoder. Texts and halves on which the encoder fails are left out.
    The first element is None if fewer than `MIN_ROWS` texts are left; its halves are None if fewer than `MIN_HALVES`
    are.

    Args:
        written: name of the built-in source, such as `pydoc:`.
        encoder: encoder of the texts.
        workspace: folder of the cached vectors.
    """
    corpora, folder = OutOfDomainTexts({written: written}, workspace), workspace / encoder.vectors_key

    def both_halves() -> list[str]:
        """Return the first halves of all texts that can be cut in two, followed by their second halves."""
        pairs = cut_texts_in_two(corpora.read(written))
        return [*(first for first, _ in pairs), *(second for _, second in pairs)]

    name = built_in_cache_key(open_source(written))
    whole = _load_or_encode_one_by_one(folder, name, encoder, lambda: corpora.read(written))
    first, second = np.split(_load_or_encode_one_by_one(folder, f"{name} halves", encoder, both_halves), 2)
    good, cut = _find_finite(whole), _find_finite(first) & _find_finite(second)
    if good.all() and cut.all():
        return OutOfDomainVectors(whole, TextHalves(first, second)), []
    left_out = f"The encoder fails on {(~good).sum():,} of {len(good):,} built-in out-of-domain texts"
    if good.sum() < MIN_ROWS:
        return None, [f"{left_out}: how a chain does on out-of-domain text is not told."]
    halves = TextHalves(first[cut], second[cut]) if cut.sum() >= MIN_HALVES else None
    return OutOfDomainVectors(whole[good], halves), [
        f"{left_out} and on halves of {(~cut).sum():,}, which were left out."
    ]


def _load_or_encode_one_by_one(
    folder: Path, key: str, encoder: TextEncoder, texts: Callable[[], Sequence[str]]
) -> FloatArray:
    """Load the vectors cached in `folder` under `key`, `(n, d)`, or encode the texts and cache them.

    If the encoder raises, texts are encoded one by one, a failing one gets a row of NaN, and nothing is cached.
    """
    try:
        return load_or_encode(folder, key, lambda: encoder.encode(texts()).vectors)
    except UpstreamError:
        raise
    except Exception:  # models raise anything; which text it was is found by trying each
        return np.concatenate([_encode_leniently(encoder, [text])[0] for text in texts()])


def _encode_leniently(encoder: TextEncoder, texts: Sequence[str]) -> tuple[FloatArray, dict[str, str]]:
    """Encode texts in one call, or one by one if that raises.
    Return the vectors `(n, d)` and the reasons of failures, by text.

    A text on which the encoder raises gets a row of NaN. A vector with NaN or inf is a failure too.
    """
    try:
        vectors = encoder.encode(texts).vectors
    except UpstreamError:  # no text is to blame
        raise
    except Exception as error:  # as above
        if len(texts) == 1:
            nan = np.full((1, encoder.dimensions), np.nan, np.float32)
            return nan, {texts[0]: f"{type(error).__name__}: {error}"}
        each = [_encode_leniently(encoder, [text]) for text in texts]
        reasons = {text: reason for _, failed in each for text, reason in failed.items()}
        return np.concatenate([vector for vector, _ in each]), reasons
    return vectors, {
        text: "NaN or inf" for text, is_good in zip(texts, _find_finite(vectors), strict=True) if not is_good
    }


def _find_finite(vectors: FloatArray) -> NDArray[np.bool_]:
    """Return a mask `(n,)` of the rows without NaN and inf."""
    return np.asarray(np.isfinite(vectors).all(axis=1))
