"""Data sets as files and rows, whether they lie in a folder or on the hub."""

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
"""In the order in which one is chosen to train on."""

Judgement = tuple[str, str, str, int]
"""Where it stands, query, document, grade."""


class DataSet(Protocol):
    """A data set's rows by the name of their file, its judgements, and what its labels mean."""

    @property
    def name(self) -> str:
        """What it is called in tables."""

    @property
    def task(self) -> Task:
        """Its layout."""

    def splits(self) -> list[str]:
        """The splits there are, training first."""

    def rows(self, name: str) -> Iterator[Record]:
        """The rows of a split, of the corpus or of the queries."""

    def judgements(self, split: str) -> list[Judgement]:
        """What answers which query."""

    def labels(self) -> dict[str, str]:
        """The text of each label; empty where nothing says more than the label."""


@dataclass(frozen=True)
class FolderDataSet:
    """A data set in a folder of one of our layouts."""

    name: str
    task: Task
    folder: Path
    language: str = "en"

    def splits(self) -> list[str]:
        """By their files."""
        if self.task == "retrieval":
            return [split for split in SPLITS if (self.folder / "qrels" / f"{split}.tsv").is_file()]
        return [split for split in SPLITS if find_file(self.folder, split)]

    def rows(self, name: str) -> Iterator[Record]:
        """The objects of a file.

        Raises:
            DataSetError: if it is missing or malformed.
        """
        yield from file_records(data_file(self.folder, name))

    def judgements(self, split: str) -> list[Judgement]:
        """Of a file in qrels."""
        return read_judgements(self.folder / "qrels" / f"{split}.tsv")

    def digest(self) -> str:
        """What tells its files from others, and what mteb's evaluators measure on them."""
        return Entry(self.name, "folder", str(self.folder), self.task, self.language).digest()

    def labels(self) -> dict[str, str]:
        """What labels.json says.

        Raises:
            DataSetError: if it is no object of texts.
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
    """Pairs in one file of JSON lines."""

    name: str
    path: Path
    task: Task = "pairs"

    def splits(self) -> list[str]:
        """The file."""
        return ["file"]

    def rows(self, name: str) -> Iterator[Record]:
        """The objects of the file."""
        if not self.path.is_file():
            raise DataSetError(f"there is no file {self.path.name}")
        yield from file_records(self.path)

    def judgements(self, split: str) -> list[Judgement]:
        """None: pairs say themselves what belongs together."""
        return []

    def labels(self) -> dict[str, str]:
        """None: likewise."""
        return {}


@dataclass(frozen=True)
class HubDataSet:
    """A data set of the Hugging Face hub, or of its cache."""

    name: str
    task: Task
    path: str
    revision: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    split: str | None = None

    def splits(self) -> list[str]:
        """The one asked for; training where none is."""
        return [self.split or "train"]

    def rows(self, name: str) -> Iterator[Record]:
        """A split under our names; corpus and queries are configurations, as mteb lays them out.

        Raises:
            DataSetError: if it cannot be had or lacks a column.
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
        """The default configuration of mteb's layout."""
        rows = self.load("default", split)
        return [
            (f"row {i}", str(r["query-id"]), str(r["corpus-id"]), ceil(float(r["score"]))) for i, r in enumerate(rows)
        ]

    def load(self, config: str | None, split: str) -> Any:
        """A split of a configuration.

        Raises:
            DataSetError: if it cannot be had.
        """
        from datasets import load_dataset

        try:
            return load_dataset(self.path, config, revision=self.revision, split=split)
        except Exception as error:  # the hub's client raises anything: no network, no such set, no rights
            raise DataSetError(f"{self.path}, split {split}, cannot be loaded: {error}") from error

    def labels(self) -> dict[str, str]:
        """The names of its classes, where its labels are their numbers."""
        column = dict(self.columns).get("label", "label")
        names = getattr(self.load(None, self.splits()[0]).features.get(column), "names", None) or []
        return {str(number): str(name) for number, name in enumerate(names)}


def open_source(settings: SourceSettings) -> tuple[list[DataSet], dict[str, str]]:
    """The data sets that a source names, and why others of its folder hold nothing to train on.

    Raises:
        JobError: if there is no such folder, or no data set in it.
        DataSetError: if the one it names cannot be used.
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
    """Every data set at or below a folder.

    Raises:
        JobError: if there is none, or one to exclude is not there.
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
    """A data set by its META.json, or by the task the job names.

    Raises:
        DataSetError: if neither says what it is, or there is nothing to train on in it.
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
    """The data set that is left out.

    Raises:
        JobError: if there is no such folder.
    """
    if not settings.folder.is_dir():
        raise JobError(f"there is no folder {settings.folder}")
    return folder_data_set(settings.name or settings.folder.resolve().name, settings.folder, settings.task)
