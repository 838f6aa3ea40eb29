"""Validated rows of a data set's files, warnings about rows that are left out, and the content of a test."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from lathe.training.errors import DataSetError, SourceError
from lathe.training.sources.lines import read_numbered_lines

Columns = dict[str, list[Any]]
"""Values of all rows by column name."""


@dataclass(frozen=True)
class Tables:
    """Columns of each split of a test, by split and column name. Used for every task without a search."""

    splits: dict[str, Columns]


@dataclass(frozen=True)
class Search:
    """Corpus, queries and relevance judgements of a search task.

    Attributes:
        corpus: (title, text) of each document, by id.
        queries: text of each query, by id.
        relevant: grades of judged documents, by query id and document id.
        ranked: ids of the candidate documents by query id, for reranking; None to search the whole corpus.
    """

    corpus: dict[str, tuple[str, str]]
    queries: dict[str, str]
    relevant: dict[str, dict[str, int]]
    ranked: dict[str, list[str]] | None = None


MAX_NAMED = 3
"""Maximum number of rows that a message names. The number of other rows is added."""


@dataclass(frozen=True)
class Record:
    """Row of a file: its fields by name, and its place (file and line) for messages."""

    place: str
    fields: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        """Return the value of a field, or raise `KeyError` if it is missing. See `require`."""
        return self.fields[name]

    def get(self, name: str) -> Any:
        """Return the value of a field, or None if it is missing."""
        return self.fields.get(name)

    def require(self, *names: str) -> None:
        """Raise `DataSetError` if the row lacks one of these fields."""
        for name in names:
            if name not in self.fields:
                raise DataSetError(f"{self.place}: no field {name!r}; it has {', '.join(self.fields) or 'none'}")

    def text(self, name: str) -> str:
        """Return the value of a field that must be a string. Any other value raises.

        Raises:
            DataSetError: if it is not a string.
        """
        value = self[name]
        if not isinstance(value, str):
            raise DataSetError(f"{self.place}: {name!r} must be a string, not {shorten_value(value)}")
        return value

    def texts(self, name: str) -> list[str]:
        """Return the non-blank texts of a field with a string, a list of strings or null. Any other value raises.

        Raises:
            DataSetError: if the field holds anything else.
        """
        value = self[name]
        listed = [value] if isinstance(value, str) else value or []
        if not _is_texts(listed):
            raise DataSetError(f"{self.place}: {name!r} must be texts, not {shorten_value(value)}")
        return [text for text in listed if not is_blank(text)]


@dataclass
class Warnings:
    """Collection of warnings about a data set: places (rows or lines) that are left out or look wrong, by kind."""

    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, place: str) -> None:
        """Record a place with a warning of this kind."""
        self.places.setdefault(kind, []).append(place)

    def to_sentences(self) -> list[str]:
        """Format one sentence for each kind of warning, with its first places and the number of others."""
        return [f"{kind}: {format_places(places)}" for kind, places in self.places.items()]


def format_places(places: Sequence[str]) -> str:
    """Format places for a message: the first `MAX_NAMED` places, and the number of others."""
    more = f" and {len(places) - MAX_NAMED} more" if len(places) > MAX_NAMED else ""
    return f"{', '.join(places[:MAX_NAMED])}{more}"


def is_blank(value: Any) -> bool:
    """Return whether a value is None or a string of white space only."""
    return value is None or (isinstance(value, str) and not value.strip())


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number. A bool is not a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_label(value: Any) -> bool:
    """Return whether a JSON value is a string, a whole number or a bool."""
    return isinstance(value, str | int)


@dataclass(frozen=True)
class FieldType:
    """Type of the values of a field.

    Attributes:
        name: name of the type for messages, after "must be".
        accepts: returns whether a value has the type.
        skips_blank: whether rows in which the value holds only whitespace are left out.
    """

    name: str
    accepts: Callable[[Any], bool]
    skips_blank: bool = False


TEXT = FieldType("a string", _is_text, skips_blank=True)
TEXT_OR_BLANK = FieldType("a string", _is_text)
TEXTS = FieldType("a list of strings", _is_texts)
NUMBER = FieldType("a number", is_number)
NUMBERS = FieldType("a list of numbers", lambda value: isinstance(value, list) and all(map(is_number, value)))
LABEL = FieldType("a class: a string or a whole number", is_label)
ID = FieldType(
    "an id: a string or a whole number",
    lambda value: isinstance(value, str | int) and not isinstance(value, bool),
)


def find_file(folder: Path, stem: str) -> Path | None:
    """Find `stem.jsonl` or `stem.jsonl.gz` in a folder. None if neither exists."""
    return next(
        (folder / f"{stem}{end}" for end in (".jsonl", ".jsonl.gz") if (folder / f"{stem}{end}").is_file()), None
    )


def find_required_file(folder: Path, stem: str) -> Path:
    """Find `stem.jsonl` or `stem.jsonl.gz` in a folder. Raise `DataSetError` if neither exists."""
    path = find_file(folder, stem)
    if path is None:
        raise DataSetError(f"{stem}.jsonl is missing")
    return path


def read_file_records(path: Path) -> Iterator[Record]:
    """Read a JSON-lines file, and yield a record (fields and place) for each line. A line that is not an object raises.

    Raises:
        DataSetError: if the file cannot be read, or a line is not a JSON object.
    """
    try:
        for number, line in read_numbered_lines(path):
            place = f"{path.name} line {number}"
            yield Record(place, _parse_object(line, place))
    except SourceError as error:
        raise DataSetError(str(error)) from error


def read_records(folder: Path, stem: str, fields: Mapping[str, FieldType], warnings: Warnings) -> list[Record]:
    """Read a file's rows without blank texts, and check the types of the fields. Wrong types or an empty file raise.

    Rows with a blank text are left out, with a warning for each.

    Args:
        folder: folder of the data set.
        stem: file name without `.jsonl` or `.jsonl.gz`.
        fields: required fields, with the types of their values.
        warnings: receives the left-out rows.

    Raises:
        DataSetError: if the file is missing, empty or not JSON, a row lacks a field or has a value of another type, or
            all rows have blank texts.
    """
    path = find_required_file(folder, stem)
    records = []
    for record in read_file_records(path):
        for field_name, field_type in fields.items():
            record.require(field_name)
            value = record[field_name]
            if not field_type.accepts(value):
                message = f"{field_name!r} must be {field_type.name}, not {shorten_value(value)}"
                raise DataSetError(f"{record.place}: {message}")
        records.append(record)

    if not records:
        raise DataSetError(f"{path.name} has no rows")

    nonblank = []
    for record in records:
        blank = (name for name, kind in fields.items() if kind.skips_blank and not record[name].strip())
        if name := next(blank, None):
            warnings.add(f"rows left out because {name!r} holds only spaces", record.place)
        else:
            nonblank.append(record)

    if not nonblank:
        raise DataSetError(f"{path.name} has only rows with blank texts")

    return nonblank


def _parse_object(line: bytes, place: str) -> dict[str, Any]:
    try:
        content = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise DataSetError(f"{place}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise DataSetError(f"{place}: not an object")
    return content


def shorten_value(value: Any) -> str:
    """Return the `repr` of a value for a message, truncated to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def index_by_id(records: Iterable[Record], name: str, warnings: Warnings) -> dict[str, Record]:
    """Index records by the id in the field `name`, without exact repetitions. Different rows with one id raise.

    A row that repeats another exactly is left out, with a warning.

    Raises:
        DataSetError: if two different records have the same id.
    """
    by_id: dict[str, Record] = {}
    for record in records:
        key = str(record[name])
        # The same row twice is harmless. With two contents under one id, it is not clear which one was judged.
        if key not in by_id:
            by_id[key] = record
        elif by_id[key].fields == record.fields:
            warnings.add(f"rows left out because they repeat {name!r} and content of another row", record.place)
        else:
            raise DataSetError(f"{record.place}: the {name} {key!r} is also at {by_id[key].place} with other content")

    return by_id


def convert_to_columns(rows: Sequence[Record], names: Iterable[str], **convert: Callable[[Any], Any]) -> Columns:
    """Convert rows to columns: the values of the named fields, by field name.

    Args:
        rows: the rows.
        names: names of the fields.
        convert: functions that convert the values of a field, by field name.
    """
    return {name: [convert[name](row[name]) if name in convert else row[name] for row in rows] for name in names}


def warn_of_single_rows(rows: Sequence[Record], warnings: Warnings, split: str) -> None:
    """Add a warning for each label that occurs in only one row of a split.

    Such a label can be neither learned nor clustered.
    """
    counts = Counter(str(row["label"]) for row in rows)
    for row in rows:
        if counts[str(row["label"])] == 1:
            warnings.add(f"labels that occur once in {split}", f"{str(row['label'])!r} ({row.place})")


def refuse_single_label(rows: Sequence[Record]) -> None:
    """Raise `DataSetError` if all rows of a test have the same label."""
    if len({str(row["label"]) for row in rows}) < 2:
        raise DataSetError("test.jsonl has only one label; at least two are needed")


_BETWEEN_WORDS = re.compile(r"[\W_]+")
"""Pattern of spaces and punctuation, which `normalize_text` replaces by one space."""


def normalize_text(text: str) -> str:
    """Normalize a text for comparison: case-fold it, and replace each run of spaces and punctuation by one space.

    A text of punctuation alone is only stripped.
    """
    return _BETWEEN_WORDS.sub(" ", text.casefold()).strip() or text.strip()
