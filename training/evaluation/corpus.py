"""The sentences that methods are fitted on, without labels."""

from dataclasses import dataclass

import numpy as np

from training.errors import EvaluationError
from training.sources.source import open_source
from transforms import Moments
from transforms.vectors import FloatArray

SENTENCE_CHARACTERS = (64, 512)
"""Lengths of the sentences that methods are fitted on, as in the mean-bias paper."""
CORPUS_MOST = 100_000
"""Sentences that are fitted on at most; as many as there."""
CORPUS_LEAST = 120
"""Fewer leave too few aside to look for ten neighbours among."""
HELDOUT_SHARE = 0.1
HELDOUT_MOST = 2000
"""Sentences kept aside of the corpus, for the intrinsic measures."""


def corpus_sentences(written: str) -> list[str]:
    """Distinct sentences of a source, of 64 to 512 characters; a seeded draw where there are too many.

    Raises:
        SourceError: if it cannot be read.
        EvaluationError: if it has too few.
    """
    least, most = SENTENCE_CHARACTERS
    found: dict[str, None] = {}
    for batch in open_source(written).batches():
        if not isinstance(batch.values, list):
            raise EvaluationError(f"{written} holds vectors; methods are fitted on sentences")
        found |= dict.fromkeys(text.strip() for text in batch.values if least <= len(text.strip()) <= most)
    sentences = list(found)
    if len(sentences) < CORPUS_LEAST:
        few = f"{len(sentences)} sentences of {least} to {most} characters"
        raise EvaluationError(f"{written} has {few}; methods are fitted on {CORPUS_LEAST} or more")
    chosen = np.random.default_rng(0).permutation(len(sentences))[:CORPUS_MOST]
    return [sentences[index] for index in np.sort(chosen)]


@dataclass(frozen=True)
class Corpus:
    """The sentences as one encoder's vectors.

    Attributes:
        fit: `(n, d)` to fit on.
        heldout: `(m, d)` kept aside.
        digest: hash of the sentences.
    """

    fit: FloatArray
    heldout: FloatArray
    digest: str

    @property
    def mean_norm(self) -> float:
        """‖μ‖ of the unit vectors to fit on."""
        return Moments.from_vectors(self.fit).mean_norm()


def split_corpus(vectors: FloatArray, digest: str) -> Corpus:
    """Vectors to fit on and vectors kept aside, by a seeded draw."""
    order = np.random.default_rng(0).permutation(len(vectors))
    aside = min(int(len(vectors) * HELDOUT_SHARE), HELDOUT_MOST)
    return Corpus(vectors[np.sort(order[aside:])], vectors[np.sort(order[:aside])], digest)
