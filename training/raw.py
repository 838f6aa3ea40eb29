"""Rows as a file has them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transforms.arrays import FloatArray

Record = dict[str, Any]


@dataclass(frozen=True)
class RawBatch:
    """Consecutive rows as a file has them, not yet checked to be of one kind.

    Attributes:
        file: the name.
        unit: what its rows are counted as.
        numbers: of the rows, in that unit.
        values: texts, lists or whatever else; or vectors `(n, d)`.
        records: the whole rows, where there is more than the one field; else empty.
    """

    file: str
    unit: str
    numbers: Sequence[int]
    values: list[Any] | FloatArray
    records: list[Record]

    def place(self, index: int) -> str:
        """File and number of a row, for an error."""
        return f"{self.file} {self.unit} {self.numbers[index]}"
