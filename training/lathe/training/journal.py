"""Append-only files of JSON lines from which a stopped run resumes, and the check that its settings are the same.

OUT/
├── job.json        settings that the folder's contents depend on    find_changed_setting
└── NAME.jsonl      an entry on each line                            Journal
"""

import os
from collections.abc import Callable, Iterable, Mapping
from io import BufferedRandom
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson

from lathe.training.errors import JobError
from lathe.transforms.files import continue_file, make_root, replace_synced, sync_folder

T = TypeVar("T")


class Journal(Generic[T]):
    """Append-only file of JSON lines, one entry on each line, from which a stopped run resumes.

    A killed writer loses at most the entries of one `append`: an incomplete line is not read, and is removed by the
    next `append`. A journal has one writer at a time, the run that holds the lock of its folder. Any number of
    processes may read it, and reading never changes the file.

    Args:
        path: path of the file; the file and its folder need not exist.
        kind: dataclass of the entries, or `dict`; called with an entry's fields.
        strict: whether damaged lines raise; else they are skipped, so the work of their entries is done again.
    """

    def __init__(self, path: Path, kind: Callable[..., T], strict: bool = False) -> None:
        self.path, self.kind, self.strict = path, kind, strict

    def read(self) -> list[T]:
        """Read the journal's entries in order, [] without a file. A damaged line is skipped, or raises if strict.

        Raises:
            JobError: if the journal is strict and a line is damaged; a last line without its newline is still skipped.
        """
        data = self.path.read_bytes() if self.path.is_file() else b""
        entries = []
        for number, line in enumerate(data.splitlines(keepends=True), 1):
            try:
                entries.append(self.kind(**orjson.loads(line)))
            except (ValueError, TypeError) as error:
                if self.strict and line.endswith(b"\n"):
                    raise JobError(
                        f"{self.path.name} line {number} is damaged; remove the line, and its work is done again"
                    ) from error

        return entries

    def append(self, entries: Iterable[T]) -> None:
        """Append entries to the file, and sync it to disk. The file and its folder are created if missing.

        An incomplete last line is completed or removed first.
        """
        make_root(self.path.parent)
        # A new file is safe after a crash only once its folder is synced.
        is_new = not self.path.exists()
        with continue_file(self.path, append=True) as file:
            _repair_last_line(file)
            file.write(serialize_lines(entries))
            file.flush()
            os.fsync(file.fileno())

        if is_new:
            sync_folder(self.path.parent)

    def replace(self, entries: Iterable[T]) -> None:
        """Replace all entries of the journal atomically, and sync them to disk. The folder is created if missing."""
        make_root(self.path.parent)
        replace_synced(self.path, serialize_lines(entries))


def find_changed_setting(path: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the name of the first setting that differs from a JSON file, None if none does. A damaged file raises.

    The name has the form `training.seed`. The result is also None if there is no file. Recorded settings that
    `settings` lacks are ignored. A setting that the file lacks differs unless its value is None.

    Args:
        path: JSON file with the recorded settings.
        settings: JSON-serializable values by name; a name with dots is looked up in nested objects.

    Raises:
        JobError: if the file is not a JSON object.
    """
    if not path.is_file():
        return None

    try:
        recorded = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError:
        recorded = None

    if not isinstance(recorded, dict):
        raise JobError(f"{path} is not a JSON object, so it is damaged; name another folder with --out")

    # Written and read again, so that a tuple equals the list that the record holds.
    for name, value in orjson.loads(orjson.dumps(settings)).items():
        stored: Any = recorded
        for part in name.split("."):
            stored = stored.get(part) if isinstance(stored, dict) else None
        if stored != value:
            return ".".join([name, *_path_to_difference(stored, value)])

    return None


def _path_to_difference(recorded: Any, current: Any) -> list[str]:
    """Return the keys that lead to the first difference of two JSON values, [] unless both are objects."""
    if not isinstance(recorded, dict) or not isinstance(current, dict):
        return []
    for key in recorded | current:
        if key not in recorded or key not in current or recorded[key] != current[key]:
            return [key, *_path_to_difference(recorded.get(key), current.get(key))]
    return []


def _repair_last_line(file: BufferedRandom) -> None:
    """Complete or remove the last line of a file if it does not end in a newline, in place.

    A line with a complete JSON value gets its newline. Any other last line is removed.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 1, 0))
    if file.read() in (b"", b"\n"):
        return

    file.seek(0)
    data = file.read()
    begin = data.rfind(b"\n") + 1

    try:
        orjson.loads(data[begin:])
    except orjson.JSONDecodeError:
        file.truncate(begin)
    else:
        file.write(b"\n")


def serialize_lines(entries: Iterable[Any]) -> bytes:
    """Serialize entries, JSON-serializable values or dataclasses, as JSON lines."""
    # Each line is copied into one buffer at once: a bytes object of orjson takes a kilobyte or more, however short it
    # is, and a million entries of ten bytes took 4 GB.
    lines = bytearray()
    for entry in entries:
        lines += orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)
    return bytes(lines)
