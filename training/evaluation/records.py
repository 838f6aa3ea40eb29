"""Rows of the files of a data set, and what was wrong with them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from training.errors import DataSetError, SourceError
from training.sources.lines import numbered_lines

NAMED_MOST = 3
"""Rows that a warning names, of all it counts."""

FieldCheck = Callable[[Any], bool]


@dataclass(frozen=True)
class Record:
    """A row: where it stands, and its fields."""

    place: str
    fields: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        """A field that was asked for when the file was read."""
        return self.fields[name]

    def get(self, name: str) -> Any:
        """A field that may be missing."""
        return self.fields.get(name)


@dataclass
class Warnings:
    """What was left out or looks wrong, by kind, with the places; a data set goes on with the rest."""

    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, place: str) -> None:
        """Another place where this was found."""
        self.places.setdefault(kind, []).append(place)

    def sentences(self) -> list[str]:
        """A sentence for each kind, naming the first few places."""
        found = []
        for kind, places in self.places.items():
            named = ", ".join(places[:NAMED_MOST])
            more = f" and {len(places) - NAMED_MOST} more" if len(places) > NAMED_MOST else ""
            found.append(f"{kind}: {named}{more}")
        return found


def is_text(value: Any) -> bool:
    """A string."""
    return isinstance(value, str)


def is_texts(value: Any) -> bool:
    """A list of strings."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def is_number(value: Any) -> bool:
    """A number; JSON knows neither NaN nor inf."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_numbers(value: Any) -> bool:
    """A list of numbers."""
    return isinstance(value, list) and all(is_number(item) for item in value)


def is_label(value: Any) -> bool:
    """A class: a string or a whole number."""
    return isinstance(value, str | int)


def is_id(value: Any) -> bool:
    """What a document or query is called: a string or a whole number."""
    return isinstance(value, str | int) and not isinstance(value, bool)


def find_file(folder: Path, stem: str) -> Path | None:
    """The file `stem.jsonl`, packed or not; None if there is neither."""
    return next(
        (folder / f"{stem}{end}" for end in (".jsonl", ".jsonl.gz") if (folder / f"{stem}{end}").is_file()), None
    )


def data_file(folder: Path, stem: str) -> Path:
    """The file `stem.jsonl`, packed or not.

    Raises:
        DataSetError: if it is missing.
    """
    found = find_file(folder, stem)
    if found is None:
        raise DataSetError(f"{stem}.jsonl is missing")
    return found


def file_records(path: Path) -> Iterator[Record]:
    """The objects of a file of JSON lines.

    Raises:
        DataSetError: if it cannot be read, or holds something else.
    """
    try:
        for number, line in numbered_lines(path):
            place = f"{path.name} line {number}"
            yield Record(place, parsed(line, place))
    except SourceError as error:
        raise DataSetError(str(error)) from error


def read_records(folder: Path, stem: str, fields: Mapping[str, FieldCheck], warnings: Warnings) -> list[Record]:
    """The rows of a file that have all fields; those whose texts are blank are left out with a warning.

    Raises:
        DataSetError: if the file is missing, empty, not JSON, or a row lacks a field or has it of another type.
    """
    path = data_file(folder, stem)
    records = []
    for record in file_records(path):
        require_fields(record, fields)
        records.append(record)
    if not records:
        raise DataSetError(f"{path.name} has no rows")
    kept = [record for record in records if not blank_field(record, fields)]
    for record in records:
        if name := blank_field(record, fields):
            warnings.add(f"rows left out because {name!r} holds only spaces", record.place)
    if not kept:
        raise DataSetError(f"{path.name} holds nothing but blank texts")
    return kept


def parsed(line: bytes, place: str) -> dict[str, Any]:
    """A line as an object.

    Raises:
        DataSetError: if it is none.
    """
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise DataSetError(f"{place}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DataSetError(f"{place}: not an object")
    return found


def require_fields(record: Record, fields: Mapping[str, FieldCheck]) -> None:
    """Raise `DataSetError` for a field that is missing or of another type."""
    for name, check in fields.items():
        if name not in record.fields:
            raise DataSetError(f"{record.place}: no field {name!r}; it has {', '.join(record.fields) or 'none'}")
        if not check(record[name]):
            wanted = (check.__doc__ or "").split(";")[0].rstrip(".").lower()
            raise DataSetError(f"{record.place}: {name!r} must be {wanted}, not {shortened(record[name])}")


def blank_field(record: Record, fields: Mapping[str, FieldCheck]) -> str | None:
    """The first text of a row that holds only spaces."""
    return next((name for name, check in fields.items() if check is is_text and not record[name].strip()), None)


def shortened(value: Any) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def require_distinct(records: Iterable[Record], name: str, warnings: Warnings) -> dict[str, Record]:
    """Records by an id; equal rows count once.

    Raises:
        DataSetError: for two different rows with one id, of which nobody can say which is meant.
    """
    found: dict[str, Record] = {}
    for record in records:
        key = str(record[name])
        if key not in found:
            found[key] = record
        elif found[key].fields == record.fields:
            warnings.add(f"rows left out because they repeat another's {name!r} and content", record.place)
        else:
            raise DataSetError(f"{record.place}: the {name} {key!r} stands at {found[key].place} with another content")
    return found
