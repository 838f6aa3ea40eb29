"""Data sets of the Hugging Face hub."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import orjson

from lathe.training.datasets.data_set import EvaluatedDataSet
from lathe.training.datasets.pairs import Judgement
from lathe.training.datasets.records import Record, Search, Tables, Warnings
from lathe.training.errors import DataSetError

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask


@dataclass(frozen=True)
class HubDataSet(EvaluatedDataSet):
    """Data set of the Hugging Face hub in one of Lathe's layouts, downloaded or from the local cache.

    Attributes:
        name: name in tables and messages.
        task: task, which decides the layout of the rows.
        path: id on the hub.
        revision: revision on the hub; None for the default revision.
        columns: pairs of our field name and the data set's column name.
        split: split to train on or to evaluate; None for `train`.
        language: language code of the texts.
    """

    name: str
    task: str
    path: str
    revision: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    split: str | None = None
    language: str = "en"

    def list_splits(self) -> list[str]:
        """Return a list with the name of the only split: `split`, or `train` if that is None."""
        return [self.split or "train"]

    def read_rows(self, name: str) -> Iterator[Record]:
        """Yield a split's rows with renamed columns. A missing column raises, except in `corpus` and `queries`.

        For `corpus` and `queries`, `name` is both the configuration and the split, as in mteb, and missing columns are
        not refused. A column that is not renamed is left out if a renamed column takes its name.

        Raises:
            DataSetError: if the split cannot be loaded or lacks a column.
        """
        config = name if name in ("corpus", "queries") else None
        rows = self._load(config, name)
        ours = {theirs: ours for ours, theirs in self.columns}

        if config is None:
            self._require_columns(rows, ours)

        unread = {our for our in ours.values() if our not in ours}  # columns whose name a renamed column takes
        for number, row in enumerate(rows, 1):
            read = {ours.get(key, key): value for key, value in row.items() if key not in unread}
            yield Record(f"{name} row {number}", read)

    def read_judgements(self, split: str) -> list[Judgement]:
        """Load the relevance judgements of a split.

        A judgement consists of a row number for messages, a query id, a document id and a grade, rounded up.

        Raises:
            DataSetError: if the split cannot be loaded.
        """
        rows = self._load("default", split)
        return [
            (f"row {number}", str(row["query-id"]), str(row["corpus-id"]), ceil(float(row["score"])))
            for number, row in enumerate(rows, 1)
        ]

    def read_labels(self) -> dict[str, str]:
        """Load the first split, and return the names of its classes by class number, as a string.

        The dict is empty if the split does not name its classes.

        Raises:
            DataSetError: if the split cannot be loaded.
        """
        column = dict(self.columns).get("label", "label")
        names = getattr(self._load(None, self.list_splits()[0]).features.get(column), "names", None) or []
        return {str(number): str(name) for number, name in enumerate(names)}

    def read_test(self, warnings: Warnings) -> Tables | Search:
        """Load and check the test, as columns or as corpus, queries and judgements of a search. Invalid rows raise.

        The rows are written to temporary files, so that they are checked like the rows of a folder.

        Raises:
            DataSetError: if the data set cannot be loaded, lacks a column, or its content is invalid.
        """
        # Written to files, so that rows of the hub pass the same checks as rows of a folder.
        with TemporaryDirectory() as folder:
            for name in self.layout.test_splits:
                with (Path(folder) / f"{name}.jsonl").open("wb") as file:
                    split = self.list_splits()[0] if name == "test" else name
                    file.writelines(orjson.dumps(row) + b"\n" for row in self._read_fields(split))
            return self.layout.read_test(Path(folder), warnings)

    def build_task(self, warnings: Warnings) -> "AbsTask":
        """Build an mteb task of the data set's test.

        For a search, mteb loads corpus, queries and judgements later.

        Raises:
            DataSetError: as in `read_test`.
        """
        if not self.layout.fields:
            from lathe.training.datasets.mteb_tasks import build_hub_task  # seconds of import

            source = {"path": self.path, "revision": self.revision or "main"}
            return build_hub_task(self.layout, self.name, self.language, source, self.list_splits()[0])
        return super().build_task(warnings)

    def _read_fields(self, split: str) -> Iterator[dict[str, Any]]:
        """Yield each row as a dict of the layout's fields, and split a row of lists. A missing column raises.

        A row whose fields are all lists, as in old mteb data sets, is split into its rows.

        Raises:
            DataSetError: if the data set cannot be loaded, or lacks a column.
        """
        names = {ours: dict(self.columns).get(ours, ours) for ours in self.layout.fields}
        rows = self._load(None, split)
        self._require_columns(rows, names.values())

        for row in rows:
            fields = {ours: row[theirs] for ours, theirs in names.items()}
            # Old data sets of mteb store all rows as lists in one row.
            if all(isinstance(value, list) for value in fields.values()):
                yield from (dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True))
            else:
                yield fields

    def _require_columns(self, rows: Any, names: Collection[str]) -> None:
        missing = [name for name in names if name not in rows.column_names]
        if missing:
            raise DataSetError(f"{self.path} has no column {missing[0]!r}; it has {', '.join(rows.column_names)}")

    def _load(self, config: str | None, split: str) -> Any:
        """Load one split of a configuration from the hub or the local cache as a `datasets.Dataset`.

        Raises:
            DataSetError: if the split cannot be loaded.
        """
        from datasets import load_dataset

        try:
            return load_dataset(self.path, config, revision=self.revision, split=split)
        except Exception as error:  # the hub's client has many error classes: no network, no such data set, no access
            raise DataSetError(f"{self.path}, split {split}, cannot be loaded: {error}") from error
