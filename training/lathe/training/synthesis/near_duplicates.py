"""Near-duplicate search: candidates by MinHash and locality-sensitive hashing, confirmed by the exact similarity.

The similarity of two texts is the Jaccard index of their sets of three-word shingles, |A ∩ B| / |A ∪ B|. Case and
punctuation are ignored. A Chinese or Japanese character counts as a word, because no spaces separate words.
"""

import re
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING

from lathe.training.datasets.records import normalize_text
from lathe.training.errors import JobError

if TYPE_CHECKING:
    from datasketch import MinHash

RUN = 3
"""Words of a shingle. Shorter runs are shared by all texts on a subject, and a changed word destroys more of longer
runs."""
PERMUTATIONS = 128
"""Number of hash functions of a MinHash sketch."""
MISS_WEIGHT, FALSE_ALARM_WEIGHT = 0.9, 0.1
"""Weights of false negatives and false positives for tuning the bands. Candidates are confirmed, so a false positive
costs only time."""
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\s\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
"""A word of a normalized text: one Chinese or Japanese character, or a run of other characters without spaces."""


def split_words(text: str) -> list[str]:
    """Split a text into words in lower case without punctuation. Each Chinese or Japanese character is a word."""
    return WORD.findall(normalize_text(text))


def split_shingles(text: str, run: int = RUN) -> set[str]:
    """Return the set of a text's shingles, which are runs of `run` consecutive words.

    A text with fewer words has a single shingle of all its words.
    """
    words = split_words(text)
    return {" ".join(words[start : start + run]) for start in range(max(1, len(words) - run + 1))}


def compute_jaccard(first: set[str], second: set[str]) -> float:
    """Compute the Jaccard similarity of two sets, |A ∩ B| / |A ∪ B|, in [0, 1].

    Raises:
        ZeroDivisionError: if both sets are empty.
    """
    return len(first & second) / len(first | second)


@lru_cache
def _lsh_bands(similarity: float) -> tuple[int, int]:
    """Compute `(bands, rows per band)` of locality-sensitive hashing for a minimum Jaccard similarity.

    The result is cached, because the computation takes 0.1 s.
    """
    from datasketch import MinHashLSH

    buckets = MinHashLSH(min(similarity, 0.99), PERMUTATIONS, weights=(FALSE_ALARM_WEIGHT, MISS_WEIGHT))
    return buckets.b, buckets.r


class NearDuplicates:
    """Index of texts that finds the closest near duplicate of another text.

    Args:
        similarity: minimum Jaccard similarity between the sets of three-word shingles of near duplicates.

    Raises:
        JobError: if datasketch is not installed.
    """

    def __init__(self, similarity: float) -> None:
        try:
            from datasketch import MinHash, MinHashLSH
        except ImportError as error:
            raise JobError(
                "finding near duplicates takes datasketch: pip install 'lathe-training[finetuning]'"
            ) from error

        self.similarity = similarity
        self.texts: list[str] = []
        self.empty = MinHash(PERMUTATIONS, hashfunc=zlib.crc32)
        self.buckets = MinHashLSH(num_perm=PERMUTATIONS, params=_lsh_bands(similarity))

    def add(self, text: str) -> None:
        """Add a text to the index."""
        self.buckets.insert(len(self.texts), self._sketch(split_shingles(text)))
        self.texts.append(text)

    def find_closest(self, text: str) -> tuple[str, float] | None:
        """Find the most similar near duplicate in the index as `(text, Jaccard similarity)`, or return None.

        Of equally similar texts, the text that was added first is returned.
        """
        runs = split_shingles(text)
        positions = self.buckets.query(self._sketch(runs))
        # Of equally similar texts the earliest is taken: max prefers the largest −position.
        similar = [(compute_jaccard(runs, split_shingles(self.texts[position])), -position) for position in positions]
        similarity, position = max(similar, default=(0.0, 0))
        return (self.texts[-position], similarity) if similarity >= self.similarity else None

    def _sketch(self, runs: set[str]) -> "MinHash":
        # Copied, so that the permutations are not drawn again for each text.
        sketch = self.empty.copy()
        sketch.update_batch(shingle.encode("utf-8", "surrogatepass") for shingle in runs)
        return sketch
