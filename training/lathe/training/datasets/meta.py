"""META.json, the file that says what a data set in a folder is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from lathe.training.errors import DataSetError

META = "META.json"
"""Name of the file."""
UNLABELLED = "sentences"
"""Task of data sets that have only texts to fit on, and nothing to evaluate or to train on."""


@dataclass(frozen=True)
class Meta:
    """Content of a META.json, not yet compared with the tasks that there are.

    Attributes:
        task: task, which decides the layout of the files.
        language: two-letter language of the texts, or two joined by "-".
    """

    task: Any
    language: Any = "en"


def read_meta(folder: Path, task: str | None = None) -> Meta:
    """Read the META.json of a data set; the language is "en" if it names none.

    Args:
        folder: folder of the data set.
        task: task that takes precedence over that of the file, which may then be missing or damaged; None to require
            it.

    Raises:
        DataSetError: if no task is given, and the file is missing, damaged or names none.
    """
    try:
        found = orjson.loads((folder / META).read_bytes())
        return Meta(task or found["task"], found.get("language", "en"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if task is not None:
            return Meta(task)
        if isinstance(error, FileNotFoundError):
            raise DataSetError(f"{META} is missing") from None
        raise DataSetError(f"{META} must be an object with a 'task': {error!r}") from error
