"""Metadata as filters see it: one entry for each pair of field and value.

Nested objects become dotted names, the elements of a list one entry each, so that equality with a list means that it
holds the value. SQLite orders numbers before texts before blobs; true, false and null are blobs, so that `true` is not
1.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from lathe.service.errors import BadValueError

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
    """Flatten an item's metadata to a set of (dotted field name, stored value), by which filters find it.

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
    """Convert a JSON scalar of the metadata to the value that the index stores and compares for filters.

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
