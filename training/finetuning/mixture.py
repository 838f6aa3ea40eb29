"""One mixture of all sources' pairs, and what became of each source."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Lengths:
    """Characters of texts."""

    mean: float
    min: int
    max: int
    median: float

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Lengths":
        """Those of some texts, at least one."""
        counts = np.array([len(text) for text in texts])
        return cls(float(counts.mean()), int(counts.min()), int(counts.max()), float(np.median(counts)))


@dataclass(frozen=True)
class SourceReport:
    """What became of a source.

    Attributes:
        name: of the data set.
        task: of it.
        split: pairs are made of.
        rows: of the split, judgements of a retrieval.
        found: pairs with an explicit positive.
        kept: pairs trained on.
        dropped: rows and pairs left out, by why.
        shared: pairs that share a text with the target.
        repeated: kept pairs that an earlier source has too.
        negatives: hard ones of the kept pairs.
        anchors: lengths of what is kept.
        positives: likewise.
        problem: why nothing of it is used.
    """

    name: str
    task: str = ""
    split: str = ""
    rows: int = 0
    found: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    shared: int = 0
    repeated: int = 0
    negatives: int = 0
    anchors: Lengths | None = None
    positives: Lengths | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Mixture:
    """Pairs of all sources, source after source.

    Attributes:
        anchors: texts, with the source's prompt.
        positives: likewise.
        sources: the source of each pair, `(n,)`.
        names: of the sources.
        reports: of the sources, those of which nothing is used included.
        notes: what else a user should know of it.
        negatives: hard ones of each pair, with the source's prompt of documents; empty where no pair has any.
    """

    anchors: list[str]
    positives: list[str]
    sources: NDArray[np.int64]
    names: list[str]
    reports: list[SourceReport]
    notes: tuple[str, ...] = ()
    negatives: Sequence[tuple[str, ...]] = ()

    def __len__(self) -> int:
        """Pairs."""
        return len(self.anchors)

    def digest(self) -> str:
        """What tells two mixtures apart."""
        found = hashlib.sha256(self.digest_of_pairs().encode())
        for place, negatives in enumerate(self.negatives):
            found.update("\0".join((f"\0{place}", *negatives)).encode(errors="surrogatepass"))
        return found.hexdigest()[:32]

    def digest_of_pairs(self) -> str:
        """The same, whatever their negatives are."""
        found = hashlib.sha256("\0".join(self.names).encode())
        for source, anchor, positive in zip(self.sources.tolist(), self.anchors, self.positives, strict=True):
            found.update(f"\0{source}\0{anchor}\0{positive}".encode(errors="surrogatepass"))
        return found.hexdigest()[:32]

    def rows(self, places: NDArray[np.int64]) -> "Mixture":
        """Some of the pairs."""
        return replace(
            self,
            anchors=[self.anchors[place] for place in places],
            positives=[self.positives[place] for place in places],
            sources=self.sources[places],
            negatives=[self.negatives[place] for place in places] if self.negatives else (),
        )

    def warnings(self, dimensions: int, regularized: bool) -> list[str]:
        """What a user should know before such a mixture is trained on with an encoder of that width."""
        found = list(self.notes)
        if regularized and len(self.names) == 1:
            found.append("there is one source: no direction separates it from others, and nothing is shrunk")
        if regularized and len(self.names) == 2:
            found.append("there are two sources: their median is their mean, and at scale 1 or above nothing is shrunk")
        if regularized and len(self) <= 2 * dimensions:
            found.append(
                f"{len(self):,} pairs span at most {len(self) - 1:,} of the {2 * dimensions:,} dimensions of their "
                "relations; the eigenspace is estimated on few"
            )
        counts = np.bincount(self.sources, minlength=len(self.names))
        single = [name for name, count in zip(self.names, counts, strict=True) if count == 1]
        if single:
            found.append(f"a single pair makes the mean of a source: {', '.join(single)}")
        return found
