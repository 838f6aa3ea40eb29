"""Tables: data frames with a format per column, for HTML, CSV and plain text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lathe.training.reporting.text import MISSING, align_columns

Format = str | Callable[[Any], str]
"""Format specification such as `+.2f`, or a function that formats a value."""


@dataclass(frozen=True)
class Table:
    """Data frame with a format for each column, for HTML, CSV or plain text.

    Attributes:
        frame: unformatted values. Columns have dtype object, so that integers stay integers next to missing values.
        formats: format by column name.
        default: format of the other columns.
    """

    frame: pd.DataFrame
    formats: Mapping[str, Format] = field(default_factory=dict)
    default: Format = ""

    @classmethod
    def from_records(
        cls, records: Iterable[Mapping[str, Any]], formats: Mapping[str, Format] | None = None, default: Format = ""
    ) -> "Table":
        """Build a table from one mapping per row, of column name to value.

        Columns are in the order of their first appearance. If a row lacks a column, the value is missing.
        """
        rows = list(records)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        return cls.from_rows([columns, *([row.get(name) for name in columns] for row in rows)], formats, default)

    @classmethod
    def from_rows(
        cls, rows: Sequence[Sequence[Any]], formats: Mapping[str, Format] | None = None, default: Format = ""
    ) -> "Table":
        """Build a table from rows of values. The first row has the column names."""
        header, *values = rows or [[]]
        return cls(pd.DataFrame(values, columns=list(header), dtype=object), formats or {}, default)

    def __bool__(self) -> bool:
        """Return whether the table has rows."""
        return len(self.frame) > 0

    @property
    def cells(self) -> list[list[str]]:
        """Rows of formatted values. The first row has the column names."""
        names = [str(name) for name in self.frame.columns]
        formats = [self.formats.get(name, self.default) for name in names]
        rows = self.frame.itertuples(index=False, name=None)
        return [names, *([_format_value(*cell) for cell in zip(row, formats, strict=True)] for row in rows)]

    def to_text(self) -> str:
        """Format the table as text with aligned columns: the first column to the left, the others to the right."""
        return align_columns(self.cells)

    def to_csv(self, columns: Sequence[str] | None = None) -> str:
        """Format the unformatted values as CSV text with a header. With `columns`, only these columns are written."""
        return str(self.frame.to_csv(columns=columns, index=False, lineterminator="\n"))


def _format_value(value: Any, format_: Format) -> str:
    if value is None or value != value:  # NaN differs from itself
        return MISSING
    if isinstance(value, str):
        return value
    return format_(value) if callable(format_) else format(value, format_)
