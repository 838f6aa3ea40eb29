"""Data sets in folders."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from lathe.training.datasets.contents import Search, Tables
from lathe.training.datasets.layout import Layout
from lathe.training.datasets.layouts import LAYOUTS
from lathe.training.datasets.layouts.retrieval import read_judgements
from lathe.training.datasets.pairs import Judgement
from lathe.training.datasets.records import Record, Warnings, find_required_file, read_file_records
from lathe.training.errors import DataSetError

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask


@dataclass(frozen=True)
class FolderDataSet:
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

    @property
    def layout(self) -> Layout:
        """Layout of the files."""
        return LAYOUTS[self.task]

    def list_splits(self) -> list[str]:
        """Return the names of the splits, in the order of preference for training."""
        return self.layout.list_splits(self.folder)

    def read_rows(self, name: str) -> Iterator[Record]:
        """Yield the rows of the file `name.jsonl` or `name.jsonl.gz`.

        Raises:
            DataSetError: if the file is missing or malformed.
        """
        yield from read_file_records(find_required_file(self.folder, name))

    def read_judgements(self, split: str) -> list[Judgement]:
        """Read the relevance judgements of `qrels/{split}.tsv`.

        Raises:
            DataSetError: if the file is missing, empty or malformed.
        """
        return read_judgements(self.folder / "qrels" / f"{split}.tsv")

    def read_labels(self) -> dict[str, str]:
        """Read the text of each label from `labels.json`; return an empty dict if there is no such file.

        Raises:
            DataSetError: if the file cannot be read, or is not a JSON object whose values are strings.
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

    def read_test(self, warnings: Warnings) -> Tables | Search:
        """Read and check the test; arguments and errors as in `Layout.read_test`."""
        return self.layout.read_test(self.folder, warnings)

    def build_task(self, warnings: Warnings) -> "AbsTask":
        """Read the test and build an mteb task of it; arguments and errors as in `Layout.read_test`."""
        from lathe.training.datasets.mteb_tasks import build_task  # seconds of import

        return build_task(self.layout, self.name, self.language, self.read_test(warnings))

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
