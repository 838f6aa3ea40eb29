"""Layout of texts with summaries by people and by machines."""

from pathlib import Path
from typing import Any

from lathe.training.datasets.contents import Search, Tables
from lathe.training.datasets.layout import Layout
from lathe.training.datasets.pairs import Pair, PairRows
from lathe.training.datasets.records import NUMBERS, TEXT, TEXTS, Warnings, read_records, to_columns
from lathe.training.errors import DataSetError


class Summarization(Layout):
    """Texts with human summaries, and machine summaries that people graded."""

    task = "summarization"
    fields = {"text": TEXT, "human_summaries": TEXTS, "machine_summaries": TEXTS, "relevance": NUMBERS}
    text_columns = ("text", "human_summaries", "machine_summaries")
    mteb_class, mteb_type, main_score = "AbsTaskSummarization", "Summarization", "cosine_spearman"

    def read_test(self, folder: Path, warnings: Warnings) -> Tables:
        """Read texts with machine summaries, their grades, and human summaries, and return them as columns. Incomplete
        rows are left out, with a warning.

        Raises:
            DataSetError: if the file is invalid, a row has not one grade for each machine summary, or no row is
                complete.
        """
        complete = []
        for row in read_records(folder, "test", self.fields, warnings):
            if len(row["machine_summaries"]) != len(row["relevance"]):
                counts = f"{len(row['machine_summaries'])} machine summaries and {len(row['relevance'])} grades"
                raise DataSetError(f"{row.place}: {counts}; each needs its own")

            if not row["human_summaries"] or len(row["machine_summaries"]) < 2:
                warnings.add("rows left out because they have no human summary, or not two of machines", row.place)
            elif not all(text.strip() for text in row["human_summaries"] + row["machine_summaries"]):
                warnings.add("rows left out because a summary holds only spaces", row.place)
            else:
                complete.append(row)

        if not complete:
            raise DataSetError("test.jsonl has no row with a human summary and two of machines")

        return Tables({"test": to_columns(complete, self.fields)})

    def mteb_attributes(self, data: Tables | Search) -> dict[str, Any]:
        """Return the class attributes of the mteb task. They are the lowest and the highest grade, as `min_score` and
        `max_score`, at least 1 apart.
        """
        assert isinstance(data, Tables)
        grades = [grade for row in data.splits["test"]["relevance"] for grade in row]
        # At least 1 apart, because mteb divides by the difference.
        return {"min_score": min(grades), "max_score": max(max(grades), min(grades) + 1)}

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Return a pair of text and summary for each human summary of each row.

        Rows with a blank text, without a summary, or whose `valid` is false are recorded as left out.

        Raises:
            DataSetError: if a row lacks a field, or a field is not text.
        """
        pairs = []
        for row in rows.read_nonblank("text", "human_summaries"):
            summaries = row.texts("human_summaries")
            if row.get("valid") is False:
                rows.dropped.add("marked as not valid", row.place)
            elif not summaries:
                rows.dropped.add("document without a summary", row.place)
            else:
                pairs += [Pair(row.text("text"), text, row.place) for text in summaries]

        return pairs
