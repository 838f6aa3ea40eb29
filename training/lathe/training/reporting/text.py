"""Numbers, intervals, p-values and counts as text, for tables, sentences and figures."""

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands format text, and need no NumPy for it
    from lathe.training.comparison import Interval

MISSING = "–"
"""Text in place of a missing value."""
MIN_P = 0.001
"""Smallest p-value that is written as a number."""


def format_by_sign(estimate: "Interval", above: str, below: str, neither: str) -> str:
    """Return `above` if the interval lies above 0, `below` if it lies below 0, else `neither`.

    `neither` is returned for an interval that contains 0, and for an estimate without bounds.
    """
    return {1: above, -1: below, 0: neither}[estimate.sign]


def format_number(value: float | None, spec: str = ".2f", scale: float = 1) -> str:
    """Format `scale · value` by a format specification such as `+.2f`. None gives a dash."""
    return MISSING if value is None else f"{scale * value:{spec}}"


def format_interval(estimate: "Interval", spec: str = ".2f", scale: float = 1, unit: str = "") -> str:
    """Format an estimate times `scale` with its unit and its interval, such as "0.12 [0.05, 0.20]".

    For an estimate without bounds, only the value is formatted.
    """
    value = format_number(estimate.value, spec, scale) + unit
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{format_number(estimate.low, spec, scale)}, {format_number(estimate.high, spec, scale)}]"


def format_points(difference: "Interval") -> str:
    """Format a difference in points with its interval, such as "+1.23 points [+0.50, +2.00]".

    For a difference without bounds, only the value is formatted.
    """
    return format_interval(difference, "+.2f", unit=" points")


def format_percent(share: "Interval | float") -> str:
    """Format a share as per cent: a number as "12 %", and an `Interval` as "12.3 % [10.0, 15.0]"."""
    return f"{100 * share:.0f} %" if isinstance(share, int | float) else format_interval(share, ".1f", 100, " %")


def format_half_width(estimate: "Interval | None", spec: str = "+.2f", sign: str = " ±") -> str:
    """Format an estimate with half the length of its interval, such as "+1.23 ±0.45". None gives a dash.

    For an estimate without bounds, only the value is formatted. `spec` formats both numbers, and its plus sign is only
    used for the value.
    """
    if estimate is None:
        return MISSING
    value = f"{estimate.value:{spec}}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value}{sign}{(estimate.high - estimate.low) / 2:{spec.removeprefix('+')}}"


def format_fraction(share: float) -> str:
    """Format a share as "1/4" if it is within 1 % of a unit fraction 1/n, else in per cent such as "40 %".

    The share must be above 0.
    """
    denominator = round(1 / share)
    return f"1/{denominator}" if abs(share * denominator - 1) < 0.01 else format_percent(share)


def format_p_value(p: float) -> str:
    """Format a p-value for a sentence, such as "p = 0.012", or "p < 0.001" below `MIN_P`."""
    return f"p = {p:.3f}" if p >= MIN_P else f"p < {MIN_P}"


def format_cosine(cosine: float | None) -> str:
    """Format a cosine with its angle, such as "0.980 (11.5°)". None gives a dash."""
    if cosine is None:
        return MISSING
    return f"{cosine:.3f} ({math.degrees(math.acos(max(-1.0, min(1.0, cosine)))):.1f}°)"


def format_bytes(count: float) -> str:
    """Format a number of bytes with a decimal unit from B to TB, such as "14 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def format_count(count: int, noun: str) -> str:
    """Format a count with a noun, which gets an s unless the count is 1, such as "3 encoders"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """Format a duration in seconds (at least "1 s"), from two minutes on in minutes, from two hours on in hours."""
    if seconds < 120:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def align_columns(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Format rows of cells as lines of text with aligned columns, two spaces apart.

    Args:
        rows: cells. The first row has a cell for every column. A later row may have fewer cells, and the last of these
            may be longer than the column, such as an error in place of numbers.
        left: positions of the columns that are aligned to the left. The other columns are aligned to the right.
    """
    widths = [len(cell) for cell in rows[0]]
    for row in rows:
        aligned = row if len(row) == len(widths) else row[:-1]
        for column, cell in enumerate(aligned):
            widths[column] = max(widths[column], len(cell))

    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        ).rstrip()
        for row in rows
    )
