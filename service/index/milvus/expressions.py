"""Filters as Milvus's expressions, with the same meaning as in the record of an embedded index.

Milvus can compare JSON, but a list there equals nothing, a missing field makes a condition neither true nor false,
and names would have to be quoted. So each item has two further fields made from its metadata: `entries`, a digest of
each name and of each name with value, answers what exists and what equals; `ranges` has the smallest and the largest
number and text of each name, as texts that sort like them.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence

from service.index.fields import Value
from service.index.filters import Condition, Filter, Junction
from service.index.items import CONTROL

EVERYTHING = 'id != ""'
DIGEST_BYTES = 16
NUMBER, TEXT = "n", "t"
LEAST, MOST = "least", "most"
ROUNDED_MOST = 2**11
"""Further from a whole number below 2⁶³ its nearest double never lies."""


def expression(wanted: Filter) -> str:
    """A filter for Milvus."""
    if isinstance(wanted, Condition):
        return condition(wanted)
    parts = [expression(part) for part in wanted.parts]
    if isinstance(wanted, Junction) and wanted.kind == "not":
        return f"not ({parts[0]})"
    return "(" + f" {wanted.kind} ".join(parts) + ")" if parts else EVERYTHING


def condition(wanted: Condition) -> str:
    """One condition for Milvus; true or false for every item."""
    if wanted.test == "exists":
        return f'array_contains(entries, "{digest(wanted.field)}")'
    if wanted.test == "in":
        among = ", ".join(f'"{digest(wanted.field, value)}"' for value in wanted.values)
        return f"array_contains_any(entries, [{among}])"
    sign, side = {"gt": (">", MOST), "gte": (">=", MOST), "lt": ("<", LEAST), "lte": ("<=", LEAST)}[wanted.test]
    (limit,) = wanted.values
    if isinstance(limit, bytes):  # parse_filter lets no true, false or null through
        raise TypeError(f"{wanted.field}: a range has a number or a text")
    kind, bound = sortable(limit)
    place = f'ranges["{range_key(wanted.field, kind, side)}"]'
    return f'(exists {place} and {place} {sign} "{bound}")'


def entries_of(found: Iterable[tuple[str, Value]]) -> list[str]:
    """What an item's names and values are found by; from `fields.entries`."""
    digests = {digest(name, value) for name, value in found}
    return sorted(digests | {digest(name) for name, _ in found})


def ranges_of(found: Iterable[tuple[str, Value]]) -> Mapping[str, str]:
    """The smallest and largest number and text of each name."""
    bounds: dict[tuple[str, str], list[str]] = {}
    for name, value in found:
        if not isinstance(value, bytes):
            kind, bound = sortable(value)
            bounds.setdefault((name, kind), []).append(bound)
    return {
        range_key(name, kind, side): choose(values)
        for (name, kind), values in bounds.items()
        for side, choose in ((LEAST, min), (MOST, max))
    }


def range_key(name: str, kind: str, side: str) -> str:
    """Where `ranges` holds one side of a name's numbers or texts."""
    return f"{digest(name)}_{kind}_{side}"


def among(ids: Sequence[str]) -> str:
    """The items of some ids. pymilvus would not quote what ids hold, which then were an expression of the caller's."""
    quoted = (item.replace("\\", "\\\\").replace('"', '\\"') for item in ids if not CONTROL.search(item))
    return "id in [" + ", ".join(f'"{item}"' for item in quoted) + "]"


def digest(name: str, *value: Value) -> str:
    """A name, or a name with a value, in 32 letters that need no quoting."""
    named = name.encode("utf-8", "surrogatepass")
    content = [len(named).to_bytes(8, "big"), named]  # with the length, no name can pass for one with a value
    for part in value:
        content += [b"b", part] if isinstance(part, bytes) else [b"s", "".join(sortable(part)).encode()]
    return hashlib.blake2b(b"".join(content), digest_size=DIGEST_BYTES).hexdigest()


def sortable(value: int | float | str) -> tuple[str, str]:
    """A number or a text as letters that sort as it does among its kind: numbers exactly, texts by their bytes.

    A number is its double, bit by bit, the sign turned so that it sorts, then what rounding to the double left over.
    """
    if isinstance(value, int | float):
        rounded = float(value) + 0.0  # −0 is 0
        bits = struct.unpack(">Q", struct.pack(">d", rounded))[0]
        bits = bits ^ (2**64 - 1) if bits >> 63 else bits | 2**63
        left = int(value) - int(rounded) if isinstance(value, int) else 0
        return NUMBER, f"{bits:016x}{left + ROUNDED_MOST:04x}"
    return TEXT, value.encode("utf-8", "surrogatepass").hex()
