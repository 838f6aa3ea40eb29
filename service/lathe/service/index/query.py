"""A search request to an index, the same for every backend, and its filters on metadata.

The grammar of filters gives conditions that the backends translate.

    {"lang": "en"}                              equality; with a list, that it holds the value
    {"year": {"gte": 2000, "lt": 2010}}         ranges: gt, gte, lt, lte, of numbers or of texts
    {"lang": {"in": ["en", "de"]}}              also nin, ne, eq, exists
    {"and": […]}, {"or": […]}, {"not": {…}}     several fields in one object mean and

Operators may be written with a dollar sign. An item without the field satisfies no equality and no range; it does
satisfy `ne`, `nin` and `not`. Nested fields are named with dots.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lathe.service.errors import BadValueError
from lathe.service.index.items import Value, convert_to_stored
from lathe.service.index.reducer import Vectors

MAX_CONDITIONS = 256
"""Maximum number of conditions in a filter."""
MAX_DEPTH = 16
"""Maximum nesting depth of a filter."""
Range = Literal["gt", "gte", "lt", "lte"]
"""Operator that compares with one bound."""
RANGES: tuple[Range, ...] = ("gt", "gte", "lt", "lte")
"""All range operators."""
OPERATORS = ("eq", "ne", "in", "nin", "exists", *RANGES)
"""All operators on a field."""

Mask = NDArray[np.bool_]
"""Boolean array `(n,)`, true for the rows that satisfy a filter."""


@dataclass(frozen=True)
class Condition:
    """Test of one field, which each backend translates to its own query language.

    Attributes:
        field: name of the field, nested names joined by dots.
        test: `exists`, `in` (the field has or contains one of the values), or a range operator with one value.
        values: values as `convert_to_stored` converts them; none for `exists`.
    """

    field: str
    test: Literal["exists", "in"] | Range
    values: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Junction:
    """Logical combination of filters.

    Attributes:
        kind: `and`, `or` or `not`.
        parts: filters to combine; a single one for `not`.
    """

    kind: str
    parts: "tuple[Filter, ...]"


Filter = Condition | Junction
"""Parsed filter."""


def parse_filter(value: Any) -> Filter:
    """Parse a filter from a JSON object, and return it as a tree of conditions.

    Raises:
        BadValueError: if it is not a valid filter, or has too many conditions or levels; the message names the part.
    """
    return _parse_part(value, 0, iter(range(MAX_CONDITIONS)))


def _spend_condition(budget: Iterator[int]) -> None:
    """Take one of the conditions that a filter may still have. An empty object costs one, too, as it is evaluated."""
    if next(budget, None) is None:
        raise BadValueError(f"a filter may have at most {MAX_CONDITIONS} conditions", param="filter")


def _parse_part(value: Any, depth: int, budget: Iterator[int]) -> Filter:
    """Parse a filter object, or an object nested in one, and return the filter. Several keys are combined by `and`."""
    if not isinstance(value, dict):
        raise BadValueError('a filter is an object such as {"field": "value"}', param="filter")
    if depth > MAX_DEPTH:
        raise BadValueError(f"a filter may be nested at most {MAX_DEPTH} deep", param="filter")
    if not value:
        _spend_condition(budget)
    parts = [_parse_entry(key, entry, depth, budget) for key, entry in value.items()]
    return parts[0] if len(parts) == 1 else Junction("and", tuple(parts))


def _parse_entry(key: str, value: Any, depth: int, budget: Iterator[int]) -> Filter:
    """Parse one key of a filter object and its value, and return the filter. The key is `and`, `or`, `not` or a field.

    Several operators on a field are combined by `and`. Each spends one condition of the budget.
    """
    plain = key.removeprefix("$")
    if plain in ("and", "or"):
        if not isinstance(value, list) or not value:
            raise BadValueError(f"{key} takes a list of filters", param="filter")
        return Junction(plain, tuple(_parse_part(part, depth + 1, budget) for part in value))
    if plain == "not":
        return Junction("not", (_parse_part(value, depth + 1, budget),))

    if not isinstance(value, dict):
        value = {"eq": value}
    if not value:
        raise BadValueError(f"{key}: give one of {', '.join(OPERATORS)}", param="filter")
    parts = []
    for operator, operand in value.items():
        _spend_condition(budget)
        parts.append(_parse_operator(key, operator.removeprefix("$"), operand))
    return parts[0] if len(parts) == 1 else Junction("and", tuple(parts))


def _parse_operator(field: str, operator: str, operand: Any) -> Filter:
    """Parse `{field: {operator: operand}}`. A negative operator becomes `not` of the positive one."""
    if operator in ("eq", "ne"):
        equality = Condition(field, "in", (_convert_comparable(field, operand),))
        return equality if operator == "eq" else Junction("not", (equality,))
    if operator in ("in", "nin"):
        membership = _build_membership(field, operand)
        return membership if operator == "in" else Junction("not", (membership,))
    if operator == "exists":
        if not isinstance(operand, bool):
            raise BadValueError(f"{field}: exists takes true or false", param="filter")
        existence = Condition(field, "exists")
        return existence if operand else Junction("not", (existence,))
    for known in RANGES:
        if operator == known:
            return _build_range(field, known, operand)
    raise BadValueError(f"{field}: there is no operator {operator!r}; there are {', '.join(OPERATORS)}", param="filter")


def _build_membership(field: str, operand: Any) -> Condition:
    if not isinstance(operand, list) or not 0 < len(operand) <= 1000:
        raise BadValueError(f"{field}: in and nin take a list of 1 to 1,000 values", param="filter")
    return Condition(field, "in", tuple(_convert_comparable(field, value) for value in operand))


def _build_range(field: str, operator: Range, operand: Any) -> Condition:
    if isinstance(operand, bool) or not isinstance(operand, int | float | str):
        raise BadValueError(f"{field}: {operator} takes a number or a text", param="filter")
    return Condition(field, operator, (convert_to_stored(operand),))


def _convert_comparable(field: str, value: Any) -> Value:
    if isinstance(value, dict | list):
        raise BadValueError(f"{field}: compare with a text, a number, true, false or null", param="filter")
    return convert_to_stored(value)


def evaluate_filter(parsed: Filter, mask_of: Callable[[Condition], Mask], rows: int) -> Mask:
    """Return the mask `(rows,)` of the rows that satisfy a filter. `mask_of` returns the mask of one condition."""
    if isinstance(parsed, Condition):
        return mask_of(parsed)
    if parsed.kind == "not":
        return ~evaluate_filter(parsed.parts[0], mask_of, rows)

    mask = np.full(rows, parsed.kind == "and")
    combine = np.logical_and if parsed.kind == "and" else np.logical_or
    for part in parsed.parts:  # one mask at a time: a filter of 256 conditions would hold 256 bytes of each row
        combine(mask, evaluate_filter(part, mask_of, rows), out=mask)
    return mask


MAX_BATCH_QUERIES = 256
"""Maximum number of queries in a batch, which bounds the memory."""
MAX_BATCH_ENTRIES = 2**24
"""Maximum number of entries of original vectors gathered for a batch: 64 MB in float32."""
MANY_RESCORED = 50
"""Multiple of the hits that are ranked again by their original vectors, to stand for all of them."""
DEFAULT_EF = 100
"""Default size of the candidate list of a graph search."""


@dataclass(frozen=True, eq=False)
class Query:
    """Search request: vectors, how many items to return for each, and which items and scores count.

    Attributes:
        vectors: original query vectors `(q, d)`, or reduced ones `(q, k)` if `reduced`.
        k: number of items per vector.
        ef: size of the graph's candidate list; raised to the number of candidates if smaller. None for the default.
        rescoring: take this many times k candidates, and rank them by the original vectors; None ranks by the reduced
            ones.
        item_filter: filter that the items must satisfy; None for all items.
        reduced: whether the vectors are reduced already; they must not be rescored then.
        min_probability: items that are less probably right are left out; None for all.
        exact: whether all items are compared, in the form that the index searches, in place of a search of the graph.
    """

    vectors: Vectors
    k: int
    ef: int | None = None
    rescoring: float | None = None
    item_filter: Filter | None = None
    reduced: bool = False
    min_probability: float | None = None
    exact: bool = False

    def slice_batches(self, candidates: int, width: int) -> Iterator[slice]:
        """Yield consecutive slices of the query vectors, so small that the candidates of a slice take limited memory.

        A slice has at least one query, at most 256, and so few that the original vectors of all their candidates have
        at most 2²⁴ entries.
        """
        step = max(1, min(MAX_BATCH_QUERIES, MAX_BATCH_ENTRIES // (candidates * width)))
        for start in range(0, len(self.vectors), step):
            yield slice(start, start + step)
