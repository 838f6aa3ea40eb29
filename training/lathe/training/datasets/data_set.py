"""Interface of a data set, its training pairs, and checks for data leakage from the target.

The target is a data set that a model will be tested on. Its test texts must not be trained on.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lathe.training.datasets.layout import Layout
from lathe.training.datasets.layouts import LAYOUTS
from lathe.training.datasets.pairs import Pair, PairRows, PairSettings, RowReader
from lathe.training.datasets.records import Search, Tables, Warnings, normalize_text
from lathe.training.errors import DataSetError, JobError

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask


class DataSet(RowReader):
    """Base class of data sets whose rows can become training pairs.

    Attributes:
        task: task, which decides the layout.
    """

    task: str

    @property
    def layout(self) -> Layout:
        """Layout of the task, which knows the fields of rows and reads, checks and builds the test."""
        return LAYOUTS[self.task]

    @abstractmethod
    def list_splits(self) -> list[str]:
        """Return the names of the splits, in the order of preference for training."""


class EvaluatedDataSet(DataSet):
    """Base class of data sets whose test split can be evaluated.

    Attributes:
        language: language code of the texts.
    """

    language: str

    @abstractmethod
    def read_test(self, warnings: Warnings) -> Tables | Search:
        """Read and check the test split, as columns, or as corpus, queries and relevance judgements of a search.

        Arguments and errors are the same as in `Layout.read_test`.
        """

    def build_task(self, warnings: Warnings) -> "AbsTask":
        """Build an mteb task of the test split, with arguments and errors as in `Layout.read_test`."""
        from lathe.training.datasets.mteb_tasks import build_task  # seconds of import

        return build_task(self.layout, self.name, self.language, self.read_test(warnings))


@dataclass(frozen=True)
class FoundPairs:
    """Training pairs of one split of a data set, before duplicates and overlap are removed.

    Attributes:
        pairs: the pairs.
        split: split that the pairs were made of.
        rows: number of rows read.
        dropped: rows left out, by reason.
    """

    pairs: list[Pair]
    split: str
    rows: int
    dropped: Warnings


def find_pairs(data: DataSet, settings: PairSettings) -> FoundPairs:
    """Build the anchor–positive pairs of one split, and record rows left out. Raise for a missing split or no pair.

    The split is the one in the settings, or else the first split of the data set.

    Raises:
        DataSetError: if there is no such split, a row lacks a field, or no pair can be built.
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


MAX_NAMED_SOURCES = 5
"""Maximum number of sources that an error message lists."""


def collect_test_texts(target: EvaluatedDataSet) -> set[str]:
    """Return the normalized texts of a data set's test split: inputs, queries and documents.

    The set is empty without a test split.

    Raises:
        DataSetError: if the data set cannot be read.
    """
    return {normalize_text(text) for text in read_test_texts(target)} if "test" in target.list_splits() else set()


def collect_training_texts(target: DataSet) -> set[str]:
    """Return the normalized texts of the pairs in a data set's training split.

    The set is empty without a training split.

    Raises:
        DataSetError: if the data set cannot be read.
    """
    if "train" not in target.list_splits():
        return set()
    pairs = find_pairs(target, PairSettings(split="train")).pairs
    return {normalize_text(text) for pair in pairs for text in pair.parts}


def collect_test_queries(target: EvaluatedDataSet) -> set[str] | None:
    """Return the normalized queries of a retrieval or reranking test. The result is None for any other task.

    Documents of a search may be used in training, so only the queries are compared.

    Raises:
        DataSetError: if the data set cannot be read.
    """
    data = target.read_test(Warnings())
    return {normalize_text(text) for text in data.queries.values()} if isinstance(data, Search) else None


def read_test_texts(target: EvaluatedDataSet) -> Iterator[str]:
    """Yield the texts of a data set's test split unchanged, and documents with a title also without the title.

    Raises:
        DataSetError: if the data set cannot be read.
    """
    data = target.read_test(Warnings())
    if isinstance(data, Search):
        yield from data.queries.values()
        for title, text in data.corpus.values():
            # A training text may be the document with its title or without.
            yield from dict.fromkeys((text, f"{title} {text}".strip()))
        return

    for name in target.layout.text_columns:
        for value in data.splits["test"][name]:
            yield from [value] if isinstance(value, str) else value


def find_overlap(pairs: list[Pair], forbidden: set[str]) -> set[int]:
    """Find the positions of the pairs with a text that, once normalized, is in `forbidden`."""
    return {
        position for position, pair in enumerate(pairs) if any(normalize_text(text) in forbidden for text in pair.parts)
    }


def refuse_overlap(shared: dict[str, int], target: str) -> None:
    """Raise `JobError` if training data sets share texts with the test split of the target data set.

    Args:
        shared: number of pairs that share a text, by training data set; empty if there are none, which passes.
        target: name of the target.
    """
    if not shared:
        return

    named = ", ".join(f"{name} ({count:,} pairs)" for name, count in list(shared.items())[:MAX_NAMED_SOURCES])
    more = f" and {len(shared) - MAX_NAMED_SOURCES} more" if len(shared) > MAX_NAMED_SOURCES else ""
    raise JobError(
        f"sources share texts with the test set of {target}: {named}{more}. Training on them would be data leakage: "
        "leave these pairs out with overlap: drop, or allow them with overlap: allow"
    )
