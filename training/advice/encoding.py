"""Encoding of sampled texts into a store that survives a killed run; texts on which the encoder fails are left out."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.advice.sample import HALVES_LEAST, Foreign, Halves, cut_all
from training.advice.sample_size import LEAST
from training.encoder.encoder import Encoder
from training.errors import EncoderError
from training.evaluation.store import VectorStore, text_key
from training.fitting.fit import built_in_name, kept_vectors, sampled_texts
from training.sources.source import open_source
from transforms.progress import Progress
from transforms.vectors import FloatArray

BLOCK_TEXTS = 1024
"""Number of texts that are encoded between two writes to disk, so the most that a killed run loses."""


class Encoding:
    """Encoder with a store of vectors on disk; it records texts on which the encoder fails.

    Args:
        encoder: encoder of the texts.
        folder: folder of the store.

    Attributes:
        store: stored vectors, by text.
        failed: reasons why texts could not be encoded, by text.
    """

    def __init__(self, encoder: Encoder, folder: Path) -> None:
        self.encoder = encoder
        self.store = VectorStore(folder / "texts", encoder.dimensions)
        self.failed: dict[str, str] = {}

    def encode(self, texts: Sequence[str], on_progress: Progress) -> None:
        """Encode the texts that the store lacks, in blocks, and store their vectors; record failing texts in `failed`.

        Args:
            texts: texts to encode.
            on_progress: called with progress in [0, 1] and a message.

        Raises:
            EncoderError: if the encoder fails on every text.
        """
        missing = list({text_key(text): text for text in texts if text_key(text) not in self.store}.values())
        for start in range(0, len(missing), BLOCK_TEXTS):
            on_progress(start / len(missing), f"{start:,} of {len(missing):,} texts encoded")
            self.encode_block(missing[start : start + BLOCK_TEXTS])
        if self.failed and len(self.store) == 0:
            raise EncoderError(f"{self.encoder.name} fails on every text: {next(iter(self.failed.values()))}")

    def encode_block(self, texts: Sequence[str]) -> None:
        """Encode texts in one call, or one by one if it raises; store finite vectors, note other texts in `failed`."""
        try:
            vectors = self.encoder.encode(texts).vectors
        except Exception as error:  # models raise anything; which text it was is found by trying each
            if len(texts) > 1:
                for text in texts:
                    self.encode_block([text])
            else:
                self.failed[texts[0]] = f"{type(error).__name__}: {error}"
            return
        good = finite(vectors)
        self.failed |= {text: "NaN or inf" for text, is_good in zip(texts, good, strict=True) if not is_good}
        self.store.add([text_key(text) for text in texts if text not in self.failed], vectors[good])

    def vectors(self, texts: Sequence[str]) -> FloatArray:
        """Return the stored vectors of encoded texts, `(n, d)` float32; raise `KeyError` for a text that has none."""
        return self.store.get([text_key(text) for text in texts])

    def notes(self) -> Iterator[str]:
        """Yield a sentence with the number of texts on which the encoder failed and the first reason, if any failed."""
        if self.failed:
            why = next(iter(self.failed.values()))
            yield f"The encoder fails on {len(self.failed):,} texts or halves of texts, which were left out: {why}."


def foreign_text(written: str, encoder: Encoder, workspace: Path) -> tuple[Foreign | None, list[str]]:
    """Return vectors of a built-in out-of-domain corpus and of its text halves, and notes on texts left out.

    Vectors are cached in the folder, once for each encoder. Texts and halves on which the encoder fails are left out.
    The first element is None if fewer than `LEAST` texts are left; its halves are None if fewer than `HALVES_LEAST`
    are.

    Args:
        written: name of the built-in source, such as `pydoc:`.
        encoder: encoder of the texts.
        workspace: folder of the cached vectors.
    """
    source, folder = open_source(written), workspace / encoder.fingerprint

    def both_halves() -> list[str]:
        """Return the first halves of all texts that can be cut in two, followed by their second halves."""
        pairs = cut_all(sampled_texts(source))
        return [*(first for first, _ in pairs), *(second for _, second in pairs)]

    name = built_in_name(source)
    whole = kept_or_one_by_one(folder, name, encoder, lambda: sampled_texts(source))
    first, second = np.split(kept_or_one_by_one(folder, f"{name} halves", encoder, both_halves), 2)
    good, cut = finite(whole), finite(first) & finite(second)
    if good.all() and cut.all():
        return Foreign(whole, Halves(first, second)), []
    left_out = f"The encoder fails on {(~good).sum():,} of {len(good):,} built-in foreign texts"
    if good.sum() < LEAST:
        return None, [f"{left_out}: how a chain does on foreign text is not told."]
    halves = Halves(first[cut], second[cut]) if cut.sum() >= HALVES_LEAST else None
    return Foreign(whole[good], halves), [f"{left_out} and on halves of {(~cut).sum():,}, which were left out."]


def kept_or_one_by_one(folder: Path, of: str, encoder: Encoder, texts: Callable[[], Sequence[str]]) -> FloatArray:
    """Load the vectors cached in `folder` under `of`, `(n, d)`, or encode the texts and cache them.

    If the encoder raises, texts are encoded one by one, a failing one gets a row of NaN, and nothing is cached.
    """
    try:
        return kept_vectors(folder, of, lambda: encoder.encode(texts()).vectors)
    except Exception:  # models raise anything; which text it was is found by trying each
        return np.concatenate([vector_or_nan(encoder, text) for text in texts()])


def vector_or_nan(encoder: Encoder, text: str) -> FloatArray:
    """Encode one text, `(1, d)`; return NaN in every dimension if the encoder raises."""
    try:
        return encoder.encode([text]).vectors
    except Exception:  # as above
        return np.full((1, encoder.dimensions), np.nan, np.float32)


def finite(vectors: FloatArray) -> NDArray[np.bool_]:
    """Return a mask `(n,)` of the rows without NaN and inf."""
    return np.asarray(np.isfinite(vectors).all(axis=1))
