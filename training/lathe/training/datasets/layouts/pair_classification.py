"""Layout of pairs of sentences that mean the same or not."""

from pathlib import Path
from typing import Any

from lathe.training.datasets.contents import Search, Tables
from lathe.training.datasets.layout import Layout
from lathe.training.datasets.pairs import Pair, PairRows
from lathe.training.datasets.records import (
    LABEL,
    TEXT,
    Record,
    Warnings,
    read_records,
    require_several_labels,
    to_columns,
)
from lathe.training.errors import DataSetError


class PairClassification(Layout):
    """Pairs of sentences with label 1 if they are equivalent and 0 if not."""

    task = "pair_classification"
    fields = {"sentence1": TEXT, "sentence2": TEXT, "label": LABEL}
    text_columns = ("sentence1", "sentence2")
    mteb_class, mteb_type, main_score = "AbsTaskPairClassification", "PairClassification", "max_ap"
    symmetric = True

    def read_test(self, folder: Path, warnings: Warnings) -> Tables:
        """Read the test's pairs of sentences with their labels, 0 or 1, and return them as columns.

        Raises:
            DataSetError: if the file is invalid, has a label but 0 and 1, or only one label.
        """
        rows = read_records(folder, "test", self.fields, warnings)
        for row in rows:
            _require_binary(row)
        require_several_labels(rows)
        return Tables({"test": to_columns(rows, self.fields, label=int)})

    def mteb_attributes(self, data: Tables | Search) -> dict[str, Any]:
        """Return the name of the label column."""
        return {"label_column_name": "label"}

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Return a pair of the two sentences for each row labelled 1. Rows labelled 0, and rows with a blank first
        sentence, are recorded as left out.

        Raises:
            DataSetError: if a label is neither 0 nor 1, or a row labelled 1 has no second sentence.
        """

        def is_positive(row: Record) -> bool:
            """Return whether a row is labelled 1, and record it as left out if it is labelled 0."""
            row.require("label")
            _require_binary(row)
            if str(row["label"]) == "0":
                rows.dropped.add("labelled 0", row.place)
            return str(row["label"]) == "1"

        return rows.pair_fields("sentence1", "sentence2", is_positive)


def _require_binary(row: Record) -> None:
    """Check that a row's label is 0 or 1.

    Raises:
        DataSetError: if it is neither.
    """
    if str(row["label"]) not in ("0", "1"):
        raise DataSetError(f"{row.place}: 'label' must be 0 or 1, not {row['label']!r}")
