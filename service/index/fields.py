"""Metadata as the record's filters see it: one entry for each field and value.

Nested objects become dotted names, the elements of a list one entry each, so that equality with a
list means that it holds the value. SQLite orders numbers before texts before blobs; true, false
and null are blobs, so that `true` is not 1.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from service.errors import BadValueError

INDEXED_CHARACTERS = 200
"""Of longer texts the filters know this much and a digest: equality is exact, order nearly."""

THERE = b"\x02"
"""Stands for an object, or a list of nothing: it exists, and equals nothing."""

FIELDS_MOST = 256
NAME_MOST = 256
"""Characters of a field's name, with those of the objects it is in: the record holds it once for each value."""
DEPTH_MOST = 8

Value = int | float | str | bytes


def entries(metadata: Mapping[str, Any]) -> set[tuple[str, Value]]:
    """Names and values to find an item by.

    Raises:
        BadValueError: for metadata with too many fields, or nested too deep.
    """
    found = set()
    for entry in walk(metadata, "", 0):
        found.add(entry)
        if len(found) > FIELDS_MOST:
            raise BadValueError(f"the metadata of an item may have at most {FIELDS_MOST} values", param="metadata")
    return found


def walk(value: Any, name: str, depth: int) -> Iterator[tuple[str, Value]]:
    """The entries below a name."""
    if depth > DEPTH_MOST:
        raise BadValueError(f"metadata may be nested at most {DEPTH_MOST} deep", param="metadata")
    if len(name) > NAME_MOST:
        raise BadValueError(
            f"a name in metadata may have at most {NAME_MOST} characters with its dots", param="metadata"
        )
    if name and (isinstance(value, Mapping) or value == []):
        yield name, THERE
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from walk(inner, f"{name}.{key}" if name else key, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner, name, depth + 1)
    else:
        yield name, stored(value)


def stored(value: Any) -> Value:
    """A JSON scalar as the record holds it."""
    if value is None:
        return b""
    if isinstance(value, bool):
        return b"\x01" if value else b"\x00"
    if isinstance(value, int):
        return value if abs(value) < 2**63 else float(value)
    if isinstance(value, str) and len(value) > INDEXED_CHARACTERS:
        digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return f"{value[:INDEXED_CHARACTERS]}\u0001{digest}"
    found: Value = value
    return found
