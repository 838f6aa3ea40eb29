"""Interface of a layout, which describes the data sets of one task."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from lathe.training.datasets.pairs import Pair, PairRows, RowReader
from lathe.training.datasets.records import FieldType, Search, Tables, Warnings, find_file

SPLITS = ("train", "dev", "test")
"""Names of splits, in the order of preference for training."""


class Layout(ABC):
    """Layout of the data sets of one task: how files are read and checked, evaluated by mteb, and made into pairs.

    A subclass sets the class attributes and has no state. `lathe.training.datasets.layouts` lists all layouts.

    Attributes:
        task: name of the task, as in META.json.
        fields: required fields of a row, with their types; empty if a row needs further files, as in a search.
        text_columns: columns of the test's `Tables` that hold texts or lists of texts; unused for a `Search`.
        test_splits: splits that the test reads.
        mteb_class: name of the class in `mteb.abstasks`.
        mteb_type: mteb's type of the task.
        main_score: mteb's name of the main score.
        symmetric: whether the two texts of a pair are of the same kind, so that they get the same prompt.
        trainable: whether rows give training pairs.
    """

    task: ClassVar[str]
    fields: ClassVar[Mapping[str, FieldType]] = {}
    text_columns: ClassVar[tuple[str, ...]] = ()
    test_splits: ClassVar[tuple[str, ...]] = ("test",)
    mteb_class: ClassVar[str]
    mteb_type: ClassVar[str]
    main_score: ClassVar[str]
    symmetric: ClassVar[bool] = False
    trainable: ClassVar[bool] = True

    @abstractmethod
    def read_test(self, folder: Path, warnings: Warnings) -> Tables | Search:
        """Read and check the test split of a data set, as columns, or as corpus, queries and judgements of a search.

        Rows that are left out or look wrong are recorded in `warnings`.

        Args:
            folder: folder of the data set.
            warnings: receives what is left out or looks wrong.

        Raises:
            DataSetError: if a file is missing or invalid, or there is nothing to measure.
        """

    @abstractmethod
    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Build the training pairs of a split, and record rows without a pair in `rows.dropped`.

        Raises:
            DataSetError: if a row is invalid.
        """

    def build_mteb_attributes(self, data: Tables | Search) -> dict[str, Any]:
        """Return the class attributes of the mteb task that depend on the data, such as the range of scores."""
        return {}

    def choose_evaluation_task(self, folder: Path, language: str) -> str | None:
        """Return the task that a data set of this layout is evaluated as, or None if it can only be trained on."""
        return self.task

    def list_splits(self, folder: Path) -> list[str]:
        """Return the names of the splits that a data set in a folder has, in the order of `SPLITS`."""
        return [split for split in SPLITS if find_file(folder, split)]

    def count_rows(self, data: RowReader, split: str) -> int:
        """Count the rows of a split that training pairs are made of. For retrieval, these are relevance judgements.

        Raises:
            DataSetError: if the rows cannot be read.
        """
        return sum(1 for _ in data.read_rows(split))

    def read_corpus(self, data: RowReader) -> Iterator[str] | None:
        """Return an iterator over the documents of a search, or None if the layout has no corpus.

        Documents that are not a positive of any query are included.
        """
        return None
