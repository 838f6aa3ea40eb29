"""Data sets in a folder, in a file of JSON lines, or on the Hugging Face hub, with one interface."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any, Protocol

import orjson

from training.datasets.layouts import read_judgements
from training.datasets.records import Record, data_file, file_records, find_file
from training.errors import DataSetError

SPLITS = ("train", "dev", "test")
"""Names of splits, in the order of preference for training."""

Judgement = tuple[str, str, str, int]
"""A relevance judgement: its position in the file (for messages), query id, document id, grade."""


class DataSet(Protocol):
    """Interface of a data set: rows by file name, relevance judgements, and texts of the labels."""

    @property
    def name(self) -> str:
        """Name in tables and messages."""

    @property
    def task(self) -> str:
        """Task, which decides the layout of the rows."""

    def splits(self) -> list[str]:
        """Return the names of the splits, in the order of preference for training."""

    def rows(self, name: str) -> Iterator[Record]:
        """Yield the rows of a split, or of `corpus` or `queries`."""

    def judgements(self, split: str) -> list[Judgement]:
        """Return the relevance judgements of a split; an empty list unless the task is retrieval."""

    def labels(self) -> dict[str, str]:
        """Return the text of each label; an empty dict if only the labels themselves are known."""


@dataclass(frozen=True)
class FolderDataSet:
    """Data set in a folder, in one of the layouts of `training.datasets.layouts`.

    Attributes:
        name: name in tables and messages.
        task: task, which decides the layout.
        folder: folder with the files.
        language: language code of the texts.
    """

    name: str
    task: str
    folder: Path
    language: str = "en"

    def splits(self) -> list[str]:
        """Return the splits that have a file, in the order of `SPLITS`; a retrieval split is a file of judgements."""
        if self.task == "retrieval":
            return [split for split in SPLITS if (self.folder / "qrels" / f"{split}.tsv").is_file()]
        return [split for split in SPLITS if find_file(self.folder, split)]

    def rows(self, name: str) -> Iterator[Record]:
        """Yield the rows of the file `name.jsonl` or `name.jsonl.gz`.

        Raises:
            DataSetError: if the file is missing or malformed.
        """
        yield from file_records(data_file(self.folder, name))

    def judgements(self, split: str) -> list[Judgement]:
        """Read the relevance judgements of `qrels/{split}.tsv`."""
        return read_judgements(self.folder / "qrels" / f"{split}.tsv")

    def digest(self) -> str:
        """Return a hash, 32 hex digits, of name, task, language, version of mteb, and all files, which are read.

        Scores of data sets with equal hashes are comparable.
        """
        found = hashlib.sha256(repr((self.name, self.task, self.language, version("mteb"))).encode())
        for path in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            found.update(str(path.relative_to(self.folder)).encode())
            with path.open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
        return found.hexdigest()[:32]

    def labels(self) -> dict[str, str]:
        """Read the text of each label from `labels.json`; return an empty dict if there is no such file.

        Raises:
            DataSetError: if the file is not a JSON object whose values are strings.
        """
        path = self.folder / "labels.json"
        if not path.is_file():
            return {}
        try:
            found = orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError) as error:
            raise DataSetError(f"labels.json cannot be read: {error}") from error
        if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
            raise DataSetError("labels.json must give the text of each label")
        return found


@dataclass(frozen=True)
class FileDataSet:
    """Data set in one file of JSON lines, by default of anchor–positive pairs."""

    name: str
    path: Path
    task: str = "pairs"

    def splits(self) -> list[str]:
        """Return the only split, `["file"]`."""
        return ["file"]

    def rows(self, name: str) -> Iterator[Record]:
        """Yield the rows of the file, whatever `name` is.

        Raises:
            DataSetError: if the file is missing or malformed.
        """
        if not self.path.is_file():
            raise DataSetError(f"there is no file {self.path.name}")
        yield from file_records(self.path)

    def judgements(self, split: str) -> list[Judgement]:
        """Return an empty list: each row holds its own positive."""
        return []

    def labels(self) -> dict[str, str]:
        """Return an empty dict: a file has no label texts besides those in the job."""
        return {}


@dataclass(frozen=True)
class HubDataSet:
    """Data set of the Hugging Face hub, downloaded or from the local cache.

    Attributes:
        name: name in tables and messages.
        task: task, which decides the layout of the rows.
        path: id on the hub.
        revision: revision on the hub; None for the default one.
        columns: pairs of our field name and the data set's column name.
        split: split to train on; None for `train`.
    """

    name: str
    task: str
    path: str
    revision: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    split: str | None = None

    def splits(self) -> list[str]:
        """Return the only split: the one that the job asks for, else `train`."""
        return [self.split or "train"]

    def rows(self, name: str) -> Iterator[Record]:
        """Yield the rows of a split with our field names; `corpus` and `queries` are configurations, as in mteb.

        A column that is not renamed is left out if a renamed column takes its name.

        Raises:
            DataSetError: if the split cannot be loaded or lacks a column.
        """
        config = name if name in ("corpus", "queries") else None
        rows = self.load(config, name)
        ours = {theirs: ours for ours, theirs in self.columns}
        missing = [theirs for theirs in ours if theirs not in rows.column_names]
        if missing and config is None:
            raise DataSetError(f"{self.path} has no column {missing[0]!r}; it has {', '.join(rows.column_names)}")
        unread = {our for our in ours.values() if our not in ours}  # the hub's own of a name that another stands for
        for number, row in enumerate(rows):
            read = {ours.get(key, key): value for key, value in row.items() if key not in unread}
            yield Record(f"{name} row {number}", read)

    def judgements(self, split: str) -> list[Judgement]:
        """Load a split's relevance judgements from the configuration `default`, as in mteb; grades are rounded up."""
        rows = self.load("default", split)
        return [
            (f"row {i}", str(r["query-id"]), str(r["corpus-id"]), ceil(float(r["score"]))) for i, r in enumerate(rows)
        ]

    def load(self, config: str | None, split: str) -> Any:
        """Load a split of a configuration as a `datasets.Dataset`; this may download the data.

        Raises:
            DataSetError: if the split cannot be loaded.
        """
        from datasets import load_dataset

        try:
            return load_dataset(self.path, config, revision=self.revision, split=split)
        except Exception as error:  # the hub's client raises anything: no network, no such set, no rights
            raise DataSetError(f"{self.path}, split {split}, cannot be loaded: {error}") from error

    def labels(self) -> dict[str, str]:
        """Return the class names by class number, as text; an empty dict if the label column has no class names."""
        column = dict(self.columns).get("label", "label")
        names = getattr(self.load(None, self.splits()[0]).features.get(column), "names", None) or []
        return {str(number): str(name) for number, name in enumerate(names)}
