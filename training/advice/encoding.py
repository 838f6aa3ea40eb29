"""Vectors of a sample's texts: kept where a killed run finds them, without those that the encoder fails on."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from training.advice.sample import Foreign, Halves, cut_all
from training.encoders import Encoder
from training.errors import EncoderError
from training.evaluation.store import VectorStore, text_key
from training.fitting import built_in_name, kept_vectors, sample_vectors, sampled_texts
from training.sources import open_source
from transforms.arrays import FloatArray
from transforms.transform import Progress

BLOCK_TEXTS = 1024
"""Texts that are encoded between two writes to disk."""


class Encoding:
    """Vectors of texts in a folder.

    Args:
        encoder: of the texts.
        folder: of the vectors.

    Attributes:
        failed: texts that have none, and why.
    """

    def __init__(self, encoder: Encoder, folder: Path) -> None:
        self.encoder = encoder
        self.store = VectorStore(folder / "texts", encoder.dimensions)
        self.failed: dict[str, str] = {}

    def encode(self, texts: Sequence[str], on_progress: Progress) -> None:
        """Encode what is not there yet.

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
        """Encode some texts together, or one by one where that fails."""
        try:
            vectors = self.encoder.encode(texts).vectors
        except Exception as error:  # models raise anything; which text it was is found by trying each
            if len(texts) > 1:
                for text in texts:
                    self.encode_block([text])
            else:
                self.failed[texts[0]] = f"{type(error).__name__}: {error}"
            return
        finite = np.asarray(np.isfinite(vectors).all(axis=1))
        self.failed |= {text: "NaN or inf" for text, good in zip(texts, finite, strict=True) if not good}
        self.store.add([text_key(text) for text in texts if text not in self.failed], vectors[finite])

    def vectors(self, texts: Sequence[str]) -> FloatArray:
        """Of texts that were encoded, `(n, d)`."""
        return self.store.get([text_key(text) for text in texts])

    def notes(self) -> Iterator[str]:
        """What a reader must know of the encoder."""
        if self.failed:
            why = next(iter(self.failed.values()))
            yield f"The encoder fails on {len(self.failed):,} texts or halves of texts, which were left out: {why}."


def foreign_text(written: str, encoder: Encoder, workspace: Path) -> Foreign:
    """Built-in text with its halves, encoded once for each encoder.

    Raises:
        EncoderError: if the encoder gives NaN or inf for some of it.
    """
    source, folder = open_source(written), workspace / encoder.fingerprint

    def both_halves() -> FloatArray:
        pairs = cut_all(sampled_texts(source))
        return encoder.encode([*(first for first, _ in pairs), *(second for _, second in pairs)]).vectors

    stacked = kept_vectors(folder, f"{built_in_name(source)} halves", both_halves)
    whole, half = sample_vectors(source, encoder, folder), len(stacked) // 2
    if not (np.isfinite(whole).all() and np.isfinite(stacked).all()):
        raise EncoderError(f"{encoder.name} gives NaN or inf for some of {written}")
    return Foreign(whole, Halves(stacked[:half], stacked[half:]))
