"""Data sets in folders with a META.json, and in one file of JSON lines."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from lathe.training.datasets.data_set import DataSet, EvaluatedDataSet
from lathe.training.datasets.layout import Layout
from lathe.training.datasets.layouts import LAYOUTS
from lathe.training.datasets.layouts.retrieval import read_judgements
from lathe.training.datasets.pairs import Judgement
from lathe.training.datasets.records import Record, Search, Tables, Warnings, find_required_file, read_file_records
from lathe.training.errors import DataSetError


@dataclass(frozen=True)
class FolderDataSet(EvaluatedDataSet):
    """Data set in a folder, in one of Lathe's layouts.

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

    def list_splits(self) -> list[str]:
        """Return the names of the splits that have files, in the order of preference for training."""
        return self.layout.list_splits(self.folder)

    def read_rows(self, name: str) -> Iterator[Record]:
        """Yield the rows of the file `name.jsonl` or `name.jsonl.gz`, each a JSON object with its place in the file.

        Raises:
            DataSetError: if the file is missing or malformed.
        """
        yield from read_file_records(find_required_file(self.folder, name))

    def read_judgements(self, split: str) -> list[Judgement]:
        """Return the relevance judgements in `qrels/{split}.tsv`.

        A judgement has its place in the file, query id, document id and grade.

        Raises:
            DataSetError: if the file is missing, empty or malformed.
        """
        return read_judgements(self.folder / "qrels" / f"{split}.tsv")

    def read_labels(self) -> dict[str, str]:
        """Return the text of each label from the data set's `labels.json`, or an empty dict without that file.

        Raises:
            DataSetError: if the file cannot be read, or is not a JSON object whose values are strings.
        """
        path = self.folder / "labels.json"
        if not path.is_file():
            return {}

        try:
            texts = orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError) as error:
            raise DataSetError(f"labels.json cannot be read: {error}") from error

        if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
            raise DataSetError("labels.json must give the text of each label")

        return texts

    def read_test(self, warnings: Warnings) -> Tables | Search:
        """Read and check the test split, as columns, or as corpus, queries and judgements of a search.

        Arguments and errors are those of `Layout.read_test`.
        """
        return self.layout.read_test(self.folder, warnings)

    def digest(self) -> str:
        """Return a hash of the data set and mteb's version, as 32 hexadecimal digits.

        It covers name, task, language and all files, which are read. Scores of data sets with equal hashes are
        comparable.
        """
        hashed = hashlib.sha256(repr((self.name, self.task, self.language, version("mteb"))).encode())
        for path in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            hashed.update(str(path.relative_to(self.folder)).encode())
            with path.open("rb") as file:
                hashed.update(hashlib.file_digest(file, "sha256").digest())
        return hashed.hexdigest()[:32]


META = "META.json"
"""Name of the file."""
UNLABELLED = "sentences"
"""Task of data sets that have only texts to fit on, and nothing to evaluate or to train on."""


def read_meta(folder: Path, task: str | None = None) -> tuple[Any, Any]:
    """Read a data set's META.json, and return the pair of its task and language.

    The language is "en" if the file names none. Neither is compared with the tasks and languages that there are. The
    task decides the layout of the files. The language has two letters, or is two languages joined by "-".

    Args:
        folder: folder of the data set.
        task: task that takes precedence over that of the file, which may then be missing or damaged; None to require
            it.

    Raises:
        DataSetError: if no task is given, and the file is missing, damaged or names none.
    """
    try:
        content = orjson.loads((folder / META).read_bytes())
        return task or content["task"], content.get("language", "en")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        # The job's task counts: a damaged META.json is then no obstacle.
        if task is not None:
            return task, "en"
        if isinstance(error, FileNotFoundError):
            raise DataSetError(f"{META} is missing") from None
        raise DataSetError(f"{META} must be an object with a 'task': {error!r}") from error


@dataclass(frozen=True)
class FileDataSet(DataSet):
    """Data set in one file of JSON lines, or of such rows in memory, by default of anchor–positive pairs."""

    name: str
    path: Path | None
    task: str = "pairs"
    rows: Sequence[dict[str, Any]] = ()

    @property
    def layout(self) -> Layout:
        """Layout of the lines: the task's layout, or anchors and positives if the task needs several files."""
        layout = super().layout
        return layout if layout.fields else LAYOUTS["pairs"]

    def list_splits(self) -> list[str]:
        """Return the name of the only split, as `["file"]`."""
        return ["file"]

    def read_rows(self, name: str) -> Iterator[Record]:
        """Yield the rows of the file or in memory.

        `name` is ignored, since there is only one split.

        Raises:
            DataSetError: if the file is missing or malformed.
        """
        if self.path is None:
            yield from (Record(f"row {number}", fields) for number, fields in enumerate(self.rows, 1))
            return
        if not self.path.is_file():
            raise DataSetError(f"there is no file {self.path.name}")
        yield from read_file_records(self.path)
