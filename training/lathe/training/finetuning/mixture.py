"""Training mixture, the pairs of all sources, and a report on each source."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from lathe.training.reporting.tables import Table


@dataclass(frozen=True)
class SourceReport:
    """Numbers of rows and pairs of one data set that were read, kept and left out, with the reasons.

    Attributes:
        name: name of the data set.
        task: task of the data set.
        split: split that the pairs were made of.
        rows: number of rows of the split; of relevance judgements, for retrieval.
        found: number of pairs with an explicit positive.
        kept: number of pairs trained on.
        dropped: number of rows and pairs left out, by reason.
        shared: number of pairs that share a text with the target.
        repeated: number of kept pairs that an earlier source also has.
        negatives: number of hard negatives of the kept pairs.
        problem: why no pair is used; None if pairs are kept.
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
    problem: str | None = None


@dataclass(frozen=True)
class Mixture:
    """Training mixture: anchor–positive pairs of all data sets, one data set after the other.

    Attributes:
        anchors: anchor texts, with their source's prompt.
        positives: positive texts, with their source's prompt.
        sources: index of each pair's source in `names`, `(n,)`.
        names: names of the sources.
        reports: report on each source, including sources without used pairs.
        notes: further notes for the user.
        negatives: hard negatives of each pair, with their source's prompt for positives; empty if no pair has any.
    """

    anchors: list[str]
    positives: list[str]
    sources: NDArray[np.int64]
    names: list[str]
    reports: list[SourceReport]
    notes: tuple[str, ...] = ()
    negatives: Sequence[tuple[str, ...]] = ()

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.anchors)

    def digest(self) -> str:
        """Compute a digest of the data sets' names, the pairs and their hard negatives, in 32 hexadecimal digits."""
        hashed = hashlib.sha256(self.digest_pairs().encode())
        for index, negatives in enumerate(self.negatives):
            hashed.update("\0".join((f"\0{index}", *negatives)).encode(errors="surrogatepass"))
        return hashed.hexdigest()[:32]

    def digest_pairs(self) -> str:
        """Compute a digest of the data sets' names and the pairs, without hard negatives, in 32 hexadecimal digits."""
        hashed = hashlib.sha256("\0".join(self.names).encode())
        for source, anchor, positive in zip(self.sources.tolist(), self.anchors, self.positives, strict=True):
            hashed.update(f"\0{source}\0{anchor}\0{positive}".encode(errors="surrogatepass"))
        return hashed.hexdigest()[:32]

    def select(self, indices: NDArray[np.int64]) -> "Mixture":
        """Select the pairs at these indices, in this order. The names and reports of all data sets are kept."""
        return replace(
            self,
            anchors=[self.anchors[index] for index in indices],
            positives=[self.positives[index] for index in indices],
            sources=self.sources[indices],
            negatives=[self.negatives[index] for index in indices] if self.negatives else (),
        )

    def build_source_table(self) -> "Table":
        """Build a table with a row for each data set.

        The columns are the numbers of rows, pairs, kept pairs, pairs shared with the target, repeated pairs and
        negatives, and the reasons for what was left out.
        """
        from lathe.training.reporting.tables import Table  # imports pandas, which a job does not need at its start

        return Table.from_records(
            (
                {
                    "source": report.name,
                    "task": report.task,
                    "split": report.split,
                    "rows": report.rows,
                    "pairs": report.found,
                    "kept": report.kept,
                    "shared with the target": report.shared,
                    "also in others": report.repeated,
                    "negatives": report.negatives,
                    "left out": report.problem
                    or "; ".join(f"{count:,} {why}" for why, count in report.dropped.items()),
                }
                for report in self.reports
            ),
            default=",",
        )

    def list_single_pair_warnings(self) -> list[str]:
        """Return a list with one warning that names all data sets of a single pair. It is empty if there are none."""
        counts = np.bincount(self.sources, minlength=len(self.names))
        single = [name for name, count in zip(self.names, counts, strict=True) if count == 1]
        return [f"sources with a single pair, whose mean is that pair: {', '.join(single)}"] if single else []
