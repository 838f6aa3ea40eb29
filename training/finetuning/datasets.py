"""Training data sets in a folder, in a file of JSON lines, or on the Hugging Face hub, with one interface."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Protocol, get_args

import orjson

from training.errors import DataSetError, JobError
from training.evaluation.layouts import read_judgements
from training.evaluation.records import Record, data_file, file_records, find_file
from training.evaluation.suites import META, UNLABELLED, Entry
from training.finetuning.job import SourceSettings, TargetSettings, Task

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
    def task(self) -> Task:
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
    """Data set in a folder, in one of the layouts of `training.evaluation.layouts`.

    Attributes:
        name: name in tables and messages.
        task: task, which decides the layout.
        folder: folder with the files.
        language: language code of the texts.
    """

    name: str
    task: Task
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
        """Return a digest that changes with the files and with what mteb's evaluators measure on them."""
        return Entry(self.name, "folder", str(self.folder), self.task, self.language).digest()

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
    task: Task = "pairs"

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
    task: Task
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


def open_source(settings: SourceSettings) -> tuple[list[DataSet], dict[str, str]]:
    """Return the data sets of a source, and for each unusable or excluded one of its folder the reason, by name.

    Raises:
        JobError: if there is no such folder, or no data set in it.
        DataSetError: if the data set that the source names cannot be used.
    """
    if settings.jsonl is not None:
        name = settings.name or settings.jsonl.name.partition(".")[0]
        return [FileDataSet(name, settings.jsonl, settings.task or "pairs")], {}
    if settings.hub is not None:
        name, columns = settings.name or settings.hub, tuple(settings.columns.items())
        assert settings.task is not None  # the settings refuse a hub data set without one
        return [HubDataSet(name, settings.task, settings.hub, settings.revision, columns, settings.split)], {}
    assert settings.folder is not None
    return open_folder(settings.folder, settings)


def open_folder(root: Path, settings: SourceSettings) -> tuple[list[DataSet], dict[str, str]]:
    """Return every data set at or below a folder, and for each unusable or excluded one the reason, by name.

    A folder with a META.json, or for which the job names a task, is one data set itself.

    Raises:
        JobError: if there is no folder or no data set in it, a data set to exclude is missing, or one name is given to
            several data sets.
        DataSetError: if the folder is a data set itself that cannot be used.
    """
    if not root.is_dir():
        raise JobError(f"there is no folder {root}")
    if (root / META).is_file() or settings.task is not None:
        if settings.exclude:
            raise JobError(f"{root.name} is a data set itself: there is nothing in it to exclude")
        return [folder_data_set(settings.name or root.resolve().name, root, settings.task)], {}
    found: list[DataSet] = []
    problems: dict[str, str] = {}
    names = [(str(path.parent.relative_to(root)), path.parent) for path in sorted(root.rglob(META))]
    unknown = set(settings.exclude) - {name for name, _ in names}
    if unknown:
        raise JobError(f"{root.name} holds no data set {min(unknown)!r} to exclude; it has {', '.join(dict(names))}")
    for name, folder in names:
        if name in settings.exclude:
            problems[name] = "excluded by the job"
            continue
        try:
            found.append(folder_data_set(name, folder))
        except DataSetError as error:
            problems[name] = str(error)
    if settings.name is not None and len(names) > 1:
        raise JobError(
            f"the folder {root.name} holds {len(names)} data sets, which cannot all be called {settings.name}"
        )
    if not names:
        raise JobError(f"the folder {root} holds no data sets: folders with a {META} and files beside it")
    return found, problems


def folder_data_set(name: str, folder: Path, task: Task | None = None) -> FolderDataSet:
    """Build the data set of a folder from the task that the job names, else from its META.json.

    Raises:
        DataSetError: if neither names a task, or the task has nothing to train on.
    """
    try:
        meta = orjson.loads((folder / META).read_bytes())
        named, language = task or meta["task"], meta.get("language", "en")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if task is None:
            raise DataSetError(f"{META} must be an object with a 'task': {error!r}") from error
        named, language = task, "en"
    if named == UNLABELLED:
        raise DataSetError("sentences alone: nothing says which belong together")
    if named not in get_args(Task):
        raise DataSetError(f"there is no task {named!r} to train on; there are {', '.join(get_args(Task))}")
    return FolderDataSet(name, named, folder, str(language))


def open_target(settings: TargetSettings) -> FolderDataSet:
    """Open the target data set, which is left out of the training.

    Raises:
        JobError: if there is no such folder.
        DataSetError: if the folder is no data set that can be used.
    """
    if not settings.folder.is_dir():
        raise JobError(f"there is no folder {settings.folder}")
    return folder_data_set(settings.name or settings.folder.resolve().name, settings.folder, settings.task)
