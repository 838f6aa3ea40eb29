"""Filters as Milvus expressions, with the same meaning as in the record of an embedded index.

Milvus can compare JSON, but a list there equals nothing, a missing field makes a condition neither true nor false, and
names would have to be quoted. So each item has two further fields made from its metadata: `entries`, a digest of each
name and of each name with value, answers what exists and what equals; `ranges` has the smallest and the largest number
and text of each name, as texts that sort like them.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence

from lathe.service.errors import BadValueError
from lathe.service.index.items import CONTROL, ID_CHARACTERS, Value
from lathe.service.index.query import Condition, Filter, Junction

EVERYTHING = 'id != ""'
"""Expression that every item satisfies."""
DIGEST_BYTES = 16
"""Size of a digest in bytes."""
NUMBER, TEXT = "n", "t"
"""Kinds of values in the keys of `ranges`."""
MINIMUM, MAXIMUM = "least", "most"
"""Sides of a range in the keys of `ranges`."""
MAX_ROUNDED = 2**11
"""Maximum distance of an integer below 2⁶³ from its nearest double."""


def translate_filter(parsed: Filter) -> str:
    """Return the Milvus expression, as text, that has the meaning of a filter."""
    if isinstance(parsed, Condition):
        return _translate_condition(parsed)
    parts = [translate_filter(part) for part in parsed.parts]
    if isinstance(parsed, Junction) and parsed.kind == "not":
        return f"not ({parts[0]})"
    return "(" + f" {parsed.kind} ".join(parts) + ")" if parts else EVERYTHING


def _translate_condition(condition: Condition) -> str:
    """Return the Milvus expression, as text, that has the meaning of a test of one field.

    It compares the fields `entries` and `ranges` of an item. It is true or false for every item, never undefined.
    """
    if condition.test == "exists":
        return f'array_contains(entries, "{compute_field_digest(condition.field)}")'
    if condition.test == "in":
        among = ", ".join(f'"{compute_field_digest(condition.field, value)}"' for value in condition.values)
        return f"array_contains_any(entries, [{among}])"
    sign, side = {"gt": (">", MAXIMUM), "gte": (">=", MAXIMUM), "lt": ("<", MINIMUM), "lte": ("<=", MINIMUM)}[
        condition.test
    ]
    (limit,) = condition.values
    if isinstance(limit, bytes):  # parse_filter lets no true, false or null through
        raise TypeError(f"{condition.field}: a range has a number or a text")
    kind, bound = convert_to_sortable(limit)
    path = f'ranges["{_build_range_key(condition.field, kind, side)}"]'
    return f'(exists {path} and {path} {sign} "{bound}")'


def build_entries(entries: Iterable[tuple[str, Value]]) -> list[str]:
    """Return sorted digests of each metadata field's name, and of each name with its value, for the field `entries`."""
    digests = {compute_field_digest(name, value) for name, value in entries}
    return sorted(digests | {compute_field_digest(name) for name, _ in entries})


def build_ranges(entries: Iterable[tuple[str, Value]]) -> Mapping[str, str]:
    """Return the smallest and largest number and text of each metadata field in sortable form, for the field `ranges`.

    The keys are made of the name's digest, the kind and the side. true, false and null are left out.
    """
    bounds: dict[tuple[str, str], list[str]] = {}
    for name, value in entries:
        if not isinstance(value, bytes):
            kind, bound = convert_to_sortable(value)
            bounds.setdefault((name, kind), []).append(bound)
    return {
        _build_range_key(name, kind, side): choose(values)
        for (name, kind), values in bounds.items()
        for side, choose in ((MINIMUM, min), (MAXIMUM, max))
    }


def _build_range_key(name: str, kind: str, side: str) -> str:
    """Return the key in `ranges` of a field's smallest or largest (`side`) number or text (`kind`)."""
    return f"{compute_field_digest(name)}_{kind}_{side}"


def build_id_filter(ids: Sequence[str]) -> str:
    """Return the Milvus expression that selects the items with these ids. Ids are quoted.

    Ids with control characters are left out. pymilvus does not quote ids, so that an id could otherwise inject an
    expression.
    """
    return "id in [" + ", ".join(_quote(item) for item in ids if not CONTROL.search(item)) + "]"


def build_following_filter(item: str) -> str:
    """Return the Milvus expression that selects the items whose ids follow an id.

    Raises:
        BadValueError: if an item cannot have the id.
    """
    if not 0 < len(item) <= ID_CHARACTERS or CONTROL.search(item):
        raise BadValueError("the cursor is none that a page of this index gave", param="cursor")
    return f"id > {_quote(item)}"


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def compute_field_digest(name: str, *value: Value) -> str:
    """Return a digest of a field name, or of a name with a value, as 32 hexadecimal characters.

    These characters need no quoting in an expression.
    """
    named = name.encode("utf-8", "surrogatepass")
    content = [len(named).to_bytes(8, "big"), named]  # with the length, no name can pass for one with a value
    for part in value:
        content += [b"b", part] if isinstance(part, bytes) else [b"s", "".join(convert_to_sortable(part)).encode()]
    return hashlib.blake2b(b"".join(content), digest_size=DIGEST_BYTES).hexdigest()


def convert_to_sortable(value: int | float | str) -> tuple[str, str]:
    """Return a value's kind (`n` number, `t` text), and a text that sorts as the value does.

    Numbers sort exactly, texts by their bytes. A number is its double, bit by bit, with the sign turned so that it
    sorts, followed by what rounding to the double left over.
    """
    if isinstance(value, int | float):
        rounded = float(value) + 0.0  # −0 is 0
        # Doubles sort as their bits do, but for the sign: negative ones are inverted, all others get the highest bit.
        bits = struct.unpack(">Q", struct.pack(">d", rounded))[0]
        bits = bits ^ (2**64 - 1) if bits >> 63 else bits | 2**63
        left = int(value) - int(rounded) if isinstance(value, int) else 0
        return NUMBER, f"{bits:016x}{left + MAX_ROUNDED:04x}"
    return TEXT, value.encode("utf-8", "surrogatepass").hex()
