"""What an item may be called, and how much may be said of it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from service.errors import BadValueError, TooLargeError

ID_CHARACTERS = 512
METADATA_BYTES = 262_144
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def require_ids(ids: Sequence[str]) -> None:
    """Raise `BadValueError` unless all are ids, each once."""
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
    """Metadata as JSON; None if there is none.

    Args:
        place: of the item, for the error.
        metadata: of the item.

    Raises:
        TooLargeError: for too many bytes.
        BadValueError: for what JSON cannot hold, or not so deep.
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
