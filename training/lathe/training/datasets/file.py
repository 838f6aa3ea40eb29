"""Data sets in one file of JSON lines."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lathe.training.datasets.layout import Layout
from lathe.training.datasets.layouts import LAYOUTS
from lathe.training.datasets.pairs import Judgement
from lathe.training.datasets.records import Record, read_file_records
from lathe.training.errors import DataSetError


@dataclass(frozen=True)
class FileDataSet:
    """Data set in one file of JSON lines, by default of anchor–positive pairs."""

    name: str
    path: Path
    task: str = "pairs"

    @property
    def layout(self) -> Layout:
        """Layout of the lines: that of the task, or anchors and positives if the task needs several files."""
        layout = LAYOUTS[self.task]
        return layout if layout.fields else LAYOUTS["pairs"]

    def list_splits(self) -> list[str]:
        """Return the only split, `["file"]`."""
        return ["file"]

    def read_rows(self, name: str) -> Iterator[Record]:
        """Yield the rows of the file, whatever `name` is.

        Raises:
            DataSetError: if the file is missing or malformed.
        """
        if not self.path.is_file():
            raise DataSetError(f"there is no file {self.path.name}")
        yield from read_file_records(self.path)

    def read_judgements(self, split: str) -> list[Judgement]:
        """Return an empty list: each row holds its own positive."""
        return []

    def read_labels(self) -> dict[str, str]:
        """Return an empty dict: a file has no label texts besides those in the job."""
        return {}
