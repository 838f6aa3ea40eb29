"""Data sets in folders with a META.json, and in a single file of JSON lines."""

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
        """Read the file `name.jsonl` or `name.jsonl.gz`, and yield its rows as records with their place in the file.

        Raises:
            DataSetError: if the file is missing or malformed.
        """
        yield from read_file_records(find_required_file(self.folder, name))

    def read_judgements(self, split: str) -> list[Judgement]:
        """Read the relevance judgements in `qrels/{split}.tsv`.

        A judgement consists of its place in the file, query id, document id and grade.

        Raises:
            DataSetError: if the file is missing, empty or malformed.
        """
        return read_judgements(self.folder / "qrels" / f"{split}.tsv")

    def read_labels(self) -> dict[str, str]:
        """Read the text of each label from `labels.json`. A missing file gives {}, and a malformed file raises.

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
            raise DataSetError('labels.json must be an object that maps each label to a text, such as {"0": "refund"}')

        return texts

    def read_test(self, warnings: Warnings) -> Tables | Search:
        """Read and check the test split, as columns, or as corpus, queries and relevance judgements of a search.

        Arguments and errors are the same as in `Layout.read_test`.
        """
        return self.layout.read_test(self.folder, warnings)

    def digest(self) -> str:
        """Compute a hash of the data set and mteb's version, as 32 hexadecimal digits.

        The hash covers name, task, language and all files, which are read. Scores of data sets with equal hashes are
        comparable.
        """
        hashed = hashlib.sha256(repr((self.name, self.task, self.language, version("mteb"))).encode())
        for path in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            hashed.update(str(path.relative_to(self.folder)).encode())
            with path.open("rb") as file:
                hashed.update(hashlib.file_digest(file, "sha256").digest())
        return hashed.hexdigest()[:32]


META = "META.json"
"""Name of the file that describes a data set."""
UNLABELLED = "sentences"
"""Task of data sets that have only texts, which can be neither evaluated nor trained on."""


def read_meta(folder: Path, task: str | None = None) -> tuple[Any, Any]:
    """Read task and language ("en" by default) from META.json. Without `task`, a missing or damaged file raises.

    The values are not validated. The task decides the layout of the files. The language has two letters, or is two
    languages joined by "-".

    Args:
        folder: folder of the data set.
        task: task that takes precedence over the file's; the file may then be missing or damaged. None requires the
            file.

    Raises:
        DataSetError: if `task` is None, and the file is missing, damaged or names no task.
    """
    try:
        content = orjson.loads((folder / META).read_bytes())
        return task or content["task"], content.get("language", "en")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        # With a task from the job, META.json is not needed.
        if task is not None:
            return task, "en"
        if isinstance(error, FileNotFoundError):
            raise DataSetError(f"{META} is missing") from None
        raise DataSetError(f"{META} must be an object with a 'task': {error!r}") from error


@dataclass(frozen=True)
class FileDataSet(DataSet):
    """Data set in one file of JSON lines, or of such rows in memory, by default of anchor–positive pairs.

    Attributes:
        name: name in tables and messages.
        path: the file; None for rows in memory.
        task: task of the rows.
        rows: rows in memory, if `path` is None.
    """

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
        """Yield the records of the file, or of the rows in memory. `name` is ignored. A missing file raises.

        Raises:
            DataSetError: if the file is missing or malformed.
        """
        if self.path is None:
            yield from (Record(f"row {number}", fields) for number, fields in enumerate(self.rows, 1))
            return
        if not self.path.is_file():
            raise DataSetError(f"there is no file {self.path.name}")
        yield from read_file_records(self.path)
