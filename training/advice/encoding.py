"""Vectors of a sample's texts: kept where a killed run finds them, without those that the encoder fails on."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.advice.enough import LEAST
from training.advice.sample import HALVES_LEAST, Foreign, Halves, cut_all
from training.encoder.encoder import Encoder
from training.errors import EncoderError
from training.evaluation.store import VectorStore, text_key
from training.fitting.fit import built_in_name, kept_vectors, sampled_texts
from training.sources.source import open_source
from transforms.progress import Progress
from transforms.vectors import FloatArray

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
        good = finite(vectors)
        self.failed |= {text: "NaN or inf" for text, is_good in zip(texts, good, strict=True) if not is_good}
        self.store.add([text_key(text) for text in texts if text not in self.failed], vectors[good])

    def vectors(self, texts: Sequence[str]) -> FloatArray:
        """Of texts that were encoded, `(n, d)`."""
        return self.store.get([text_key(text) for text in texts])

    def notes(self) -> Iterator[str]:
        """What a reader must know of the encoder."""
        if self.failed:
            why = next(iter(self.failed.values()))
            yield f"The encoder fails on {len(self.failed):,} texts or halves of texts, which were left out: {why}."


def foreign_text(written: str, encoder: Encoder, workspace: Path) -> tuple[Foreign | None, list[str]]:
    """Built-in text with its halves, encoded once for each encoder, and what a reader must know of it.

    Texts and halves that the encoder fails on are left out; None where too few are left.
    """
    source, folder = open_source(written), workspace / encoder.fingerprint

    def both_halves() -> list[str]:
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
    """Vectors of texts as `kept_vectors` has them; where the encoder fails on one, NaN for it, and nothing is kept."""
    try:
        return kept_vectors(folder, of, lambda: encoder.encode(texts()).vectors)
    except Exception:  # models raise anything; which text it was is found by trying each
        return np.concatenate([vector_or_nan(encoder, text) for text in texts()])


def vector_or_nan(encoder: Encoder, text: str) -> FloatArray:
    """The vector `(1, d)` of a text."""
    try:
        return encoder.encode([text]).vectors
    except Exception:  # as above
        return np.full((1, encoder.dimensions), np.nan, np.float32)


def finite(vectors: FloatArray) -> NDArray[np.bool_]:
    """Marks `(n,)` of the rows without NaN and inf."""
    return np.asarray(np.isfinite(vectors).all(axis=1))
