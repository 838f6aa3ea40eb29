"""Interface of a data set, wherever it is, and its training pairs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lathe.training.datasets.contents import Search, Tables
from lathe.training.datasets.layout import Layout
from lathe.training.datasets.pairs import Pair, PairRows, PairSettings, RowReader
from lathe.training.datasets.records import Warnings
from lathe.training.errors import DataSetError

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask


class DataSet(RowReader, Protocol):
    """Data set that pairs can be made of."""

    @property
    def task(self) -> str:
        """Task, for tables."""

    @property
    def layout(self) -> Layout:
        """Layout of the task: its fields, and how its test is read, checked and built."""

    def list_splits(self) -> list[str]:
        """Return the names of the splits, in the order of preference for training."""


class EvaluatedDataSet(DataSet, Protocol):
    """Data set whose test can be evaluated."""

    def read_test(self, warnings: Warnings) -> Tables | Search:
        """Read and check the test.

        Arguments and errors are those of `Layout.read_test`.
        """

    def build_task(self, warnings: Warnings) -> "AbsTask":
        """Build an mteb task of the test.

        Arguments and errors are those of `Layout.read_test`.
        """


@dataclass(frozen=True)
class FoundPairs:
    """Pairs of a data set, before duplicates and overlap are removed.

    Attributes:
        pairs: the pairs.
        split: split that they were made of.
        rows: number of rows read.
        dropped: rows left out, by reason.
    """

    pairs: list[Pair]
    split: str
    rows: int
    dropped: Warnings


def find_pairs(data: DataSet, settings: PairSettings) -> FoundPairs:
    """Build the anchor–positive pairs of one split of a data set, by the data set's layout. The split is that of the
    settings, else the first one. The result also holds the number of rows and those left out.

    Raises:
        DataSetError: if there is no such split, a row lacks a field, or no pair is found.
    """
    splits = data.list_splits()
    if not splits:
        raise DataSetError(f"{data.name} has no split to train on")

    split = settings.split or splits[0]
    if split not in splits:
        raise DataSetError(f"{data.name} has no split {split!r}; it has {', '.join(splits)}")

    rows = PairRows(data, split, settings)
    pairs = data.layout.build_pairs(rows)
    if not pairs:
        reasons = "; ".join(f"{len(places)} {why}" for why, places in rows.dropped.places.items()) or "it has no rows"
        raise DataSetError(f"{data.name} has no positive pair in {split}: {reasons}")

    return FoundPairs(pairs, split, rows.count, rows.dropped)
