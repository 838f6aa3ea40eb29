"""Texts that are nearly alike: candidates by MinHash and locality-sensitive hashing, each confirmed.

Two texts are as alike as the sets of their runs of three words: Jaccard's index, |A ∩ B| / |A ∪ B|. Case and
punctuation do not count. A character of Chinese or Japanese counts as a word, since no spaces say where one ends.
"""

import re
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING

from training.errors import JobError
from training.finetuning.overlap import normalized

if TYPE_CHECKING:
    from datasketch import MinHash

RUN = 3
"""Words of a shingle: fewer are shared by texts of one subject, more are lost by one changed word."""
PERMUTATIONS = 128
MISSES, FALSE_ALARMS = 0.9, 0.1
"""What hashing is tuned against: candidates are confirmed, so that false alarms cost time alone."""
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\s\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")


def words(text: str) -> list[str]:
    """Its words, however written."""
    return WORD.findall(normalized(text))


def shingles(text: str, run: int = RUN) -> set[str]:
    """Its runs of words; the whole of one that is shorter."""
    spoken = words(text)
    return {" ".join(spoken[start : start + run]) for start in range(max(1, len(spoken) - run + 1))}


def jaccard(one: set[str], other: set[str]) -> float:
    """How much two sets share, in 0…1."""
    return len(one & other) / len(one | other)


@lru_cache
def bands(similarity: float) -> tuple[int, int]:
    """How sketches are cut up for a similarity: into so many bands of so many rows. Takes a tenth of a second."""
    from datasketch import MinHashLSH

    buckets = MinHashLSH(min(similarity, 0.99), PERMUTATIONS, weights=(FALSE_ALARMS, MISSES))
    return buckets.b, buckets.r


class NearTexts:
    """Texts that can be asked for one that is nearly the same.

    Args:
        similarity: Jaccard's index from which two are.

    Raises:
        JobError: without the extra.
    """

    def __init__(self, similarity: float) -> None:
        try:
            from datasketch import MinHash, MinHashLSH
        except ImportError as error:
            raise JobError("finding near duplicates takes datasketch: pip install 'lathe[training]'") from error
        self.similarity = similarity
        self.texts: list[str] = []
        self.empty = MinHash(PERMUTATIONS, hashfunc=zlib.crc32)
        self.buckets = MinHashLSH(num_perm=PERMUTATIONS, params=bands(similarity))

    def add(self, text: str) -> None:
        """Another one to be found."""
        self.buckets.insert(len(self.texts), self.hashed(shingles(text)))
        self.texts.append(text)

    def closest(self, text: str) -> tuple[str, float] | None:
        """The text nearest to it, with how alike they are; None where none is near."""
        found = shingles(text)
        near = ((self.texts[place], jaccard(found, shingles(self.texts[place]))) for place in self.candidates(found))
        best = max(near, key=lambda one: one[1], default=None)
        return best if best is not None and best[1] >= self.similarity else None

    def candidates(self, found: set[str]) -> list[int]:
        """Places of the texts that may be near, in their order."""
        return sorted(self.buckets.query(self.hashed(found)))

    def hashed(self, found: set[str]) -> "MinHash":
        """The sketch of a set."""
        sketch = self.empty.copy()
        sketch.update_batch(shingle.encode("utf-8", "surrogatepass") for shingle in found)
        return sketch
