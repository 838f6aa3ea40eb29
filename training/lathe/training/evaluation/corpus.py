"""Sentences without labels that methods are fitted on."""

from dataclasses import dataclass

import numpy as np

from lathe.training.errors import EvaluationError
from lathe.training.sources.source import open_source
from lathe.transforms import Moments
from lathe.transforms.vectors import FloatArray

SENTENCE_CHARACTERS = (64, 512)
"""Minimum and maximum number of characters of a sentence, as in the mean-bias paper."""
MAX_SENTENCES = 100_000
"""Maximum number of sentences of a corpus."""
MIN_SENTENCES = 120
"""Minimum number of sentences; with fewer, too few are held out to search ten neighbours among them."""
HELDOUT_SHARE = 0.1
"""Share of the sentences that are held out for the intrinsic measures."""
MAX_HELDOUT = 2000
"""Maximum number of held-out sentences."""


def read_corpus_sentences(written: str) -> list[str]:
    """Read the distinct sentences of 64 to 512 characters of a source; if there are too many, sample `MAX_SENTENCES`.

    The sample is always the same, and the order is that of the source.

    Raises:
        SourceError: if the source cannot be read.
        EvaluationError: if the source holds vectors, or fewer than `MIN_SENTENCES` such sentences.
    """
    least, most = SENTENCE_CHARACTERS
    found: dict[str, None] = {}
    for batch in open_source(written).batches():
        if not isinstance(batch.values, list):
            raise EvaluationError(f"{written} holds vectors; methods are fitted on sentences")
        found |= dict.fromkeys(text.strip() for text in batch.values if least <= len(text.strip()) <= most)
    sentences = list(found)
    if len(sentences) < MIN_SENTENCES:
        few = f"{len(sentences)} sentences of {least} to {most} characters"
        raise EvaluationError(f"{written} has {few}; methods are fitted on {MIN_SENTENCES} or more")
    chosen = np.random.default_rng(0).permutation(len(sentences))[:MAX_SENTENCES]
    return [sentences[index] for index in np.sort(chosen)]


@dataclass(frozen=True)
class Corpus:
    """Vectors of the sentences by one encoder.

    Attributes:
        fit: vectors to fit on, `(n, d)`.
        heldout: held-out vectors, `(m, d)`.
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
    """Split vectors `(n, d)` by a fixed seed into rows to fit on and held-out rows, a tenth but at most 2,000."""
    order = np.random.default_rng(0).permutation(len(vectors))
    aside = min(int(len(vectors) * HELDOUT_SHARE), MAX_HELDOUT)
    return Corpus(vectors[np.sort(order[aside:])], vectors[np.sort(order[:aside])], digest)
