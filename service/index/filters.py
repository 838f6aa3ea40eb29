"""Filters on metadata.

    {"lang": "en"}                              equality; with a list, that it holds the value
    {"year": {"gte": 2000, "lt": 2010}}         ranges: gt, gte, lt, lte, of numbers or of texts
    {"lang": {"in": ["en", "de"]}}              also nin, ne, eq, exists
    {"and": […]}, {"or": […]}, {"not": {…}}     several fields in one object mean and

Operators may be written with a dollar sign. An item without the field satisfies no equality and no
range; it does satisfy `ne`, `nin` and `not`. Nested fields are named with dots.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from service.errors import BadValueError
from service.index.fields import Value, stored

CONDITIONS_MOST = 256
DEPTH_MOST = 16
Range = Literal["gt", "gte", "lt", "lte"]
RANGES: tuple[Range, ...] = ("gt", "gte", "lt", "lte")
OPERATORS = ("eq", "ne", "in", "nin", "exists", *RANGES)

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Condition:
    """One test of one field, with which each backend does what it can.

    Attributes:
        field: its name, with dots.
        test: that it exists, that it has or holds one of the values, or that it lies on one side of the only one.
        values: as `stored` makes them; none for `exists`.
    """

    field: str
    test: Literal["exists", "in"] | Range
    values: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Junction:
    """Filters put together: all, any, or the one that must not hold."""

    kind: str
    parts: "tuple[Filter, ...]"


Filter = Condition | Junction


def parse_filter(given: Any) -> Filter:
    """The filter that JSON describes.

    Raises:
        BadValueError: naming what cannot be understood.
    """
    return parse(given, 0, Budget())


class Budget:
    """The conditions that a filter may still have; an object of none costs one too, as each is evaluated."""

    def __init__(self) -> None:
        self.left = CONDITIONS_MOST

    def spend(self) -> None:
        """Take one off, before it is made.

        Raises:
            BadValueError: if none is left.
        """
        if self.left == 0:
            raise BadValueError(f"a filter may have at most {CONDITIONS_MOST} conditions", param="filter")
        self.left -= 1


def parse(given: Any, depth: int, budget: Budget) -> Filter:
    """A filter or a part of one."""
    if not isinstance(given, dict):
        raise BadValueError('a filter is an object such as {"field": "value"}', param="filter")
    if depth > DEPTH_MOST:
        raise BadValueError(f"a filter may be nested at most {DEPTH_MOST} deep", param="filter")
    if not given:
        budget.spend()
    parts = [parse_entry(key, value, depth, budget) for key, value in given.items()]
    return parts[0] if len(parts) == 1 else Junction("and", tuple(parts))


def parse_entry(key: str, value: Any, depth: int, budget: Budget) -> Filter:
    """One key of a filter: a junction's name, or a field's."""
    plain = key.removeprefix("$")
    if plain in ("and", "or"):
        if not isinstance(value, list) or not value:
            raise BadValueError(f"{key} takes a list of filters", param="filter")
        return Junction(plain, tuple(parse(part, depth + 1, budget) for part in value))
    if plain == "not":
        return Junction("not", (parse(value, depth + 1, budget),))
    if not isinstance(value, dict):
        value = {"eq": value}
    if not value:
        raise BadValueError(f"{key}: give one of {', '.join(OPERATORS)}", param="filter")
    parts = []
    for operator, wanted in value.items():
        budget.spend()
        parts.append(parse_operator(key, operator.removeprefix("$"), wanted))
    return parts[0] if len(parts) == 1 else Junction("and", tuple(parts))


def parse_operator(field: str, operator: str, wanted: Any) -> Filter:
    """`{"field": {operator: wanted}}`."""
    if operator == "eq":
        return equal(field, wanted)
    if operator == "ne":
        return Junction("not", (equal(field, wanted),))
    if operator in ("in", "nin"):
        found = among(field, wanted)
        return found if operator == "in" else Junction("not", (found,))
    if operator == "exists":
        if not isinstance(wanted, bool):
            raise BadValueError(f"{field}: exists takes true or false", param="filter")
        there = Condition(field, "exists")
        return there if wanted else Junction("not", (there,))
    for side in RANGES:
        if operator == side:
            return within(field, side, wanted)
    raise BadValueError(f"{field}: there is no operator {operator!r}; there are {', '.join(OPERATORS)}", param="filter")


def equal(field: str, wanted: Any) -> Condition:
    """The field has, or holds, the value."""
    return Condition(field, "in", (scalar(field, wanted),))


def among(field: str, wanted: Any) -> Condition:
    """The field has one of the values."""
    if not isinstance(wanted, list) or not 0 < len(wanted) <= 1000:
        raise BadValueError(f"{field}: in and nin take a list of 1 to 1,000 values", param="filter")
    return Condition(field, "in", tuple(scalar(field, value) for value in wanted))


def within(field: str, side: Range, wanted: Any) -> Condition:
    """The field lies on one side of a number, or of a text."""
    if isinstance(wanted, bool) or not isinstance(wanted, int | float | str):
        raise BadValueError(f"{field}: {side} takes a number or a text", param="filter")
    return Condition(field, side, (stored(wanted),))


def scalar(field: str, value: Any) -> Value:
    """A value to compare with."""
    if isinstance(value, dict | list):
        raise BadValueError(f"{field}: compare with a text, a number, true, false or null", param="filter")
    return stored(value)


def evaluate(found: Filter, mask_of: Callable[[Condition], Mask], rows: int) -> Mask:
    """Which rows satisfy a filter, given which satisfy a condition."""
    if isinstance(found, Condition):
        return mask_of(found)
    if found.kind == "not":
        return ~evaluate(found.parts[0], mask_of, rows)
    everything = np.full(rows, found.kind == "and")
    combine = np.logical_and if found.kind == "and" else np.logical_or
    for part in found.parts:  # one mask at a time: a filter of 256 conditions would hold 256 bytes of each row
        combine(everything, evaluate(part, mask_of, rows), out=everything)
    return everything
