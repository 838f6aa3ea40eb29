"""Validation of ids and metadata of items."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from service.errors import BadValueError, TooLargeError

ID_CHARACTERS = 512
"""Maximum number of characters of an id."""
METADATA_BYTES = 262_144
"""Maximum size of an item's metadata as JSON, in bytes."""
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
"""Pattern of a control character, which ids must not contain."""


def require_ids(ids: Sequence[str]) -> None:
    """Raise `BadValueError` unless all ids are distinct, 1 to 512 characters long, and free of control characters."""
    seen = set()
    for place, item in enumerate(ids):
        if not 0 < len(item) <= ID_CHARACTERS:
            raise BadValueError(f"ids[{place}] has {len(item)} characters: an id has 1 to {ID_CHARACTERS}", param="ids")
        if CONTROL.search(item):
            raise BadValueError(f"ids[{place}] holds a control character", param="ids")
        if item in seen:
            raise BadValueError(f"the id {item[:80]!r} stands twice", param="ids")
        seen.add(item)


def payload(place: int, metadata: Mapping[str, Any] | None) -> bytes | None:
    """Serialize metadata as JSON bytes; return None if there is none or it is empty.

    Args:
        place: index of the item, for error messages.
        metadata: metadata of the item.

    Raises:
        TooLargeError: if it takes more than 256 KiB.
        BadValueError: if it is not serializable or nested too deep.
    """
    if not metadata:
        return None
    try:
        found = orjson.dumps(metadata)
    except orjson.JSONEncodeError:
        raise BadValueError(f"metadata[{place}] is nested too deep", param="metadata") from None
    if len(found) > METADATA_BYTES:
        raise TooLargeError(f"metadata[{place}] is larger than {METADATA_BYTES:,} bytes", param="metadata")
    return found
