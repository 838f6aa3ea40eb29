"""Layout of pairs of sentences with similarity scores."""

from pathlib import Path
from typing import Any

from lathe.training.datasets.contents import Search, Tables
from lathe.training.datasets.layout import Layout
from lathe.training.datasets.pairs import Pair, PairRows
from lathe.training.datasets.records import (
    NUMBER,
    TEXT,
    Record,
    Warnings,
    is_number,
    read_records,
    shorten_value,
    to_columns,
)
from lathe.training.errors import DataSetError

POSITIVE_SHARE = 0.8
"""Default minimum score of a positive, as a share of the range: of 5, 4 is where STS begins to say "mostly
equivalent"."""


class Sts(Layout):
    """Pairs of sentences with similarity scores by people."""

    task = "sts"
    fields = {"sentence1": TEXT, "sentence2": TEXT, "score": NUMBER}
    text_columns = ("sentence1", "sentence2")
    mteb_class, mteb_type, main_score = "AbsTaskSTS", "STS", "cosine_spearman"
    symmetric = True

    def read_test(self, folder: Path, warnings: Warnings) -> Tables:
        """Read the test's pairs of sentences with similarity scores by people, and return them as columns.

        Raises:
            DataSetError: if the file is invalid, or all scores are equal.
        """
        rows = read_records(folder, "test", self.fields, warnings)
        if len({row["score"] for row in rows}) < 2:
            raise DataSetError("test.jsonl gives every pair the same score: there is nothing to correlate with")
        return Tables({"test": to_columns(rows, self.fields, score=float)})

    def mteb_attributes(self, data: Tables | Search) -> dict[str, Any]:
        """Return the class attributes of the mteb task. They are the lowest and the highest score, as `min_score` and
        `max_score`.
        """
        assert isinstance(data, Tables)
        scores = data.splits["test"]["score"]
        return {"min_score": min(scores), "max_score": max(scores)}

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Return a pair of the two sentences for each row whose score reaches `min_score`. Other rows are recorded as
        left out.

        Without `min_score`, the threshold is `POSITIVE_SHARE` of the way from the lowest score to the highest. The rows
        are read twice.

        Raises:
            DataSetError: if a score is not a number, all are equal and there is no `min_score`, or a row that is used
                has no second sentence.
        """
        # A first pass over the rows: the threshold depends on the lowest and the highest score.
        scores = []
        for row in rows.data.read_rows(rows.split):
            row.require("score")
            if not is_number(row["score"]):
                raise DataSetError(f"{row.place}: 'score' must be a number, not {shorten_value(row['score'])}")
            scores.append(float(row["score"]))

        threshold = rows.settings.min_score
        if threshold is None:
            if not scores or min(scores) == max(scores):
                raise DataSetError("all scores are alike: none says that a pair means the same; set min_score")
            threshold = min(scores) + POSITIVE_SHARE * (max(scores) - min(scores))

        def is_positive(row: Record) -> bool:
            """Return whether a row's score reaches the threshold, and record the row as left out if not."""
            if row["score"] < threshold:
                rows.dropped.add(f"score below {threshold:g}", row.place)
            return bool(row["score"] >= threshold)

        return rows.pair_fields("sentence1", "sentence2", is_positive)
