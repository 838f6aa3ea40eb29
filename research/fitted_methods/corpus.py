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
    """Read the distinct sentences of 64 to 512 characters of a source of texts, in its order.

    If there are more than `MAX_SENTENCES`, a random sample of that size is returned. The sample is always the same, and
    the order is the order of the source.

    Raises:
        SourceError: if the source cannot be read.
        EvaluationError: if the source holds vectors, or fewer than `MIN_SENTENCES` such sentences.
    """
    shortest, longest = SENTENCE_CHARACTERS
    distinct: dict[str, None] = {}
    for batch in open_source(written).batches():
        if not isinstance(batch.values, list):
            raise EvaluationError(f"{written} holds vectors; methods are fitted on sentences")
        distinct |= dict.fromkeys(text.strip() for text in batch.values if shortest <= len(text.strip()) <= longest)

    sentences = list(distinct)
    if len(sentences) < MIN_SENTENCES:
        counted = f"{len(sentences)} sentences of {shortest} to {longest} characters"
        raise EvaluationError(f"{written} has {counted}; methods are fitted on {MIN_SENTENCES} or more")

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
    """Split vectors `(n, d)` at random into rows to fit on and held-out rows.

    The seed is fixed, and a tenth is held out, but at most 2,000 rows.

    Args:
        vectors: vectors of the sentences.
        digest: hash of the sentences, stored in the result.
    """
    order = np.random.default_rng(0).permutation(len(vectors))
    held_out = min(int(len(vectors) * HELDOUT_SHARE), MAX_HELDOUT)
    return Corpus(vectors[np.sort(order[held_out:])], vectors[np.sort(order[:held_out])], digest)
