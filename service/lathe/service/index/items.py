"""Validation of ids and metadata of items, and metadata as filters see it.

There is one entry for each pair of field and value. Nested objects become dotted names, the elements of a list one
entry each, so that equality with a list means that it holds the value. SQLite orders numbers before texts before
blobs; true, false and null are blobs, so that `true` is not 1.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from lathe.service.errors import BadValueError, ConflictError, TooLargeError, UnavailableError
from lathe.training.sources.rows import find_long_integer

ID_CHARACTERS = 512
"""Maximum number of characters of an id."""
METADATA_BYTES = 262_144
"""Maximum size of an item's metadata as JSON, in bytes."""
MAX_ANSWER_BYTES = 64_000_000
"""Maximum size of metadata and vectors in one response, in bytes; each entry of a vector counts 12."""
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
"""Pattern of a control character, which ids must not contain."""


def require_ids(ids: Sequence[str]) -> None:
    """Raise `BadValueError` unless all ids are distinct, 1 to 512 characters long, and free of control characters."""
    seen = set()
    for position, item in enumerate(ids):
        if not 0 < len(item) <= ID_CHARACTERS:
            raise BadValueError(
                f"ids[{position}] has {len(item)} characters: an id has 1 to {ID_CHARACTERS}", param="ids"
            )
        if CONTROL.search(item):
            raise BadValueError(f"ids[{position}] holds a control character", param="ids")
        if item in seen:
            raise BadValueError(f"the id {item[:80]!r} occurs twice", param="ids")
        seen.add(item)


def serialize_metadata(position: int, metadata: Mapping[str, Any] | None) -> bytes | None:
    """Return the metadata of an item as JSON bytes, or None if it is empty or None.

    Error messages name `position`.

    Raises:
        TooLargeError: if it takes more than 256 KiB.
        BadValueError: if it is nested too deep, or holds an integer beyond 64 bits.
    """
    if not metadata:
        return None
    try:
        serialized = orjson.dumps(metadata)
    except orjson.JSONEncodeError:
        number = find_long_integer(metadata)
        problem = (
            "is nested too deep" if number is None else f"holds {number}, an integer beyond 64 bits: write it as text"
        )
        raise BadValueError(f"metadata[{position}] {problem}", param="metadata") from None
    if len(serialized) > METADATA_BYTES:
        raise TooLargeError(f"metadata[{position}] is larger than {METADATA_BYTES:,} bytes", param="metadata")
    return serialized


def parse_metadata(item: str, metadata: bytes) -> dict[str, Any]:
    """Parse the stored JSON metadata of an item, and return the dict. `item` is the item's id, for the error message.

    Raises:
        UnavailableError: if it is damaged.
    """
    try:
        parsed = orjson.loads(metadata)
    except orjson.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        raise UnavailableError(
            f"the stored metadata of the item {item!r} is damaged: write or delete the item", code="corrupt_index"
        )
    return parsed


def get_text(item: str, metadata: bytes | None, text_field: str) -> str:
    """Return the text of an item, which is the value of the field `text_field` in its JSON metadata.

    Raises:
        ConflictError: if the field is missing or not a text.
        UnavailableError: if the metadata is damaged.
    """
    text = parse_metadata(item, metadata).get(text_field) if metadata else None
    if not isinstance(text, str):
        raise ConflictError(
            f"the item {item!r} has no text in its metadata field {text_field!r} to encode with the new encoder",
            param="texts",
        )
    return text


def require_small_response(items: Iterable[Mapping[str, Any] | None]) -> None:
    """Raise `TooLargeError` if the metadata and vectors of these items would take over 64 MB in a response.

    Metadata count as JSON, vectors at 12 bytes an entry.
    """
    size = 0
    sizes: dict[int, int] = {}  # of metadata that several items share, measured once
    for item in items:
        if item is None:
            continue
        metadata = item["metadata"]
        if metadata is not None:
            if id(metadata) not in sizes:
                sizes[id(metadata)] = len(orjson.dumps(metadata))
            size += sizes[id(metadata)]
        size += 12 * len(item.get("vector", ()))
        if size > MAX_ANSWER_BYTES:
            raise TooLargeError(
                f"the metadata and vectors of these items take more than {MAX_ANSWER_BYTES:,} bytes: ask for fewer"
            )


INDEXED_CHARACTERS = 200
"""Number of characters of a text that filters compare; a digest of longer ones keeps equality exact, order nearly."""

PRESENT = b"\x02"
"""Stored value of an object or an empty list: the field exists, and equals nothing."""

MAX_FIELDS = 256
"""Maximum number of entries per item."""
MAX_NAME = 256
"""Maximum number of characters of a dotted field name, because the record stores the name once per value."""
MAX_DEPTH = 8
"""Maximum nesting depth of metadata."""

Value = int | float | str | bytes
"""Stored form of a JSON scalar."""


def list_entries(metadata: Mapping[str, Any]) -> set[tuple[str, Value]]:
    """Return an item's metadata as a flat set of (dotted field name, stored value), by which filters find the item.

    Raises:
        BadValueError: if the metadata has too many values, too long names or too many levels.
    """
    entries = set()
    for entry in _walk_values(metadata, "", 0):
        entries.add(entry)
        if len(entries) > MAX_FIELDS:
            raise BadValueError(f"the metadata of an item may have at most {MAX_FIELDS} values", param="metadata")
    return entries


def _walk_values(value: Any, name: str, depth: int) -> Iterator[tuple[str, Value]]:
    """Yield (dotted field name, stored value) for a JSON value named `name` and everything nested in it.

    The elements of a list have its name. A named object or empty list also yields `PRESENT`: the field exists.

    Raises:
        BadValueError: if a name is too long, or the value is nested too deep.
    """
    if depth > MAX_DEPTH:
        raise BadValueError(f"metadata may be nested at most {MAX_DEPTH} deep", param="metadata")
    if len(name) > MAX_NAME:
        raise BadValueError(
            f"a name in metadata may have at most {MAX_NAME} characters with its dots", param="metadata"
        )
    if name and (isinstance(value, Mapping) or value == []):
        yield name, PRESENT
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk_values(inner, f"{name}.{key}" if name else key, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk_values(inner, name, depth + 1)
    else:
        yield name, convert_to_stored(value)


def convert_to_stored(value: Any) -> Value:
    """Return a JSON scalar of an item's metadata in the form in which the index stores and compares it for filters.

    null, true and false become blobs, integers beyond 64 bits become floats, and long texts are cut and get a digest.
    """
    if value is None:
        return b""
    if isinstance(value, bool):
        return b"\x01" if value else b"\x00"
    if isinstance(value, int):
        return value if abs(value) < 2**63 else float(value)
    if isinstance(value, str) and len(value) > INDEXED_CHARACTERS:
        digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return f"{value[:INDEXED_CHARACTERS]}\u0001{digest}"
    stored: Value = value
    return stored
