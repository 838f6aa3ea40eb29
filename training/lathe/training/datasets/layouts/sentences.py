"""Layouts of pairs of sentences: with similarity scores, with labels, with summaries, with translations."""

from pathlib import Path
from typing import Any

from lathe.training.datasets.layout import Layout
from lathe.training.datasets.pairs import Pair, PairRows
from lathe.training.datasets.records import (
    LABEL,
    NUMBER,
    NUMBERS,
    TEXT,
    TEXTS,
    Record,
    Search,
    Tables,
    Warnings,
    convert_to_columns,
    is_number,
    read_records,
    refuse_single_label,
    shorten_value,
)
from lathe.training.errors import DataSetError

POSITIVE_SHARE = 0.8
"""Default minimum score of a positive, as a share of the range of scores. In STS, where scores go to 5, a score of 4
means "mostly equivalent"."""


class Sts(Layout):
    """Layout of pairs of sentences with similarity scores by people."""

    task = "sts"
    fields = {"sentence1": TEXT, "sentence2": TEXT, "score": NUMBER}
    text_columns = ("sentence1", "sentence2")
    mteb_class, mteb_type, main_score = "AbsTaskSTS", "STS", "cosine_spearman"
    symmetric = True

    def read_test(self, folder: Path, warnings: Warnings) -> Tables:
        """Read the test's pairs of sentences with their similarity scores as columns. Equal scores raise.

        Raises:
            DataSetError: if the file is invalid, or all scores are equal.
        """
        rows = read_records(folder, "test", self.fields, warnings)
        if len({row["score"] for row in rows}) < 2:
            raise DataSetError("test.jsonl has the same score for every pair; a correlation needs different scores")
        return Tables({"test": convert_to_columns(rows, self.fields, score=float)})

    def build_mteb_attributes(self, data: Tables | Search) -> dict[str, Any]:
        """Return the class attributes `min_score` and `max_score`: the lowest and the highest score in the data."""
        assert isinstance(data, Tables)
        scores = data.splits["test"]["score"]
        return {"min_score": min(scores), "max_score": max(scores)}

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Build a pair of the sentences of each row whose score reaches `min_score`, or a derived threshold without it.

        Equal scores without `min_score` raise. Other rows are recorded as left out. Without `min_score`, the threshold
        is `POSITIVE_SHARE` of the way from the lowest score to the highest. The rows are read twice.

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
                raise DataSetError("all scores are equal, so no threshold for positives can be found; set min_score")
            threshold = min(scores) + POSITIVE_SHARE * (max(scores) - min(scores))

        def is_positive(row: Record) -> bool:
            """Return whether the score of a row reaches the threshold, and record any other row as left out."""
            if row["score"] < threshold:
                rows.dropped.add(f"score below {threshold:g}", row.place)
            return bool(row["score"] >= threshold)

        return rows.build_field_pairs("sentence1", "sentence2", is_positive)


class PairClassification(Layout):
    """Layout of pairs of sentences with label 1 if they are equivalent and 0 if not."""

    task = "pair_classification"
    fields = {"sentence1": TEXT, "sentence2": TEXT, "label": LABEL}
    text_columns = ("sentence1", "sentence2")
    mteb_class, mteb_type, main_score = "AbsTaskPairClassification", "PairClassification", "max_ap"
    symmetric = True

    def read_test(self, folder: Path, warnings: Warnings) -> Tables:
        """Read pairs of sentences of the test with labels as columns. Labels other than 0 and 1, or one label, raise.

        Raises:
            DataSetError: if the file is invalid, has a label other than 0 and 1, or only one label.
        """
        rows = read_records(folder, "test", self.fields, warnings)
        for row in rows:
            _require_binary(row)
        refuse_single_label(rows)
        return Tables({"test": convert_to_columns(rows, self.fields, label=int)})

    def build_mteb_attributes(self, data: Tables | Search) -> dict[str, Any]:
        """Return the class attribute of the mteb task: the name of the label column."""
        return {"label_column_name": "label"}

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Build a pair of the two sentences for each row with label 1. Labels other than 0 and 1 raise.

        Rows with label 0, and rows with a blank first sentence, are recorded as left out.

        Raises:
            DataSetError: if a label is neither 0 nor 1, or a row labelled 1 has no second sentence.
        """

        def is_positive(row: Record) -> bool:
            """Return whether a row is labelled 1, and record a row labelled 0 as left out."""
            row.require("label")
            _require_binary(row)
            if str(row["label"]) == "0":
                rows.dropped.add("labelled 0", row.place)
            return str(row["label"]) == "1"

        return rows.build_field_pairs("sentence1", "sentence2", is_positive)


def _require_binary(row: Record) -> None:
    if str(row["label"]) not in ("0", "1"):
        raise DataSetError(f"{row.place}: 'label' must be 0 or 1, not {row['label']!r}")


class Summarization(Layout):
    """Layout of texts with human summaries, and machine summaries that people graded."""

    task = "summarization"
    fields = {"text": TEXT, "human_summaries": TEXTS, "machine_summaries": TEXTS, "relevance": NUMBERS}
    text_columns = ("text", "human_summaries", "machine_summaries")
    mteb_class, mteb_type, main_score = "AbsTaskSummarization", "Summarization", "cosine_spearman"

    def read_test(self, folder: Path, warnings: Warnings) -> Tables:
        """Read texts, summaries and grades as columns, without rows of too few summaries. Unequal counts raise.

        Unequal numbers of machine summaries and grades raise. Rows without a human summary or with fewer than two
        machine summaries are left out with a warning, as are rows with a blank summary.

        Raises:
            DataSetError: if the file is invalid, a row has not one grade for each machine summary, or no row is
                complete.
        """
        complete = []
        for row in read_records(folder, "test", self.fields, warnings):
            if len(row["machine_summaries"]) != len(row["relevance"]):
                counts = f"{len(row['machine_summaries'])} machine summaries and {len(row['relevance'])} grades"
                raise DataSetError(f"{row.place}: {counts}; each machine summary needs one grade")

            if not row["human_summaries"] or len(row["machine_summaries"]) < 2:
                warnings.add("rows left out because they have no human or fewer than two machine summaries", row.place)
            elif not all(text.strip() for text in row["human_summaries"] + row["machine_summaries"]):
                warnings.add("rows left out because a summary holds only spaces", row.place)
            else:
                complete.append(row)

        if not complete:
            raise DataSetError("test.jsonl has no row with a human summary and two machine summaries")

        return Tables({"test": convert_to_columns(complete, self.fields)})

    def build_mteb_attributes(self, data: Tables | Search) -> dict[str, Any]:
        """Return the class attributes `min_score` and `max_score`: the lowest and the highest grade in the data.

        The two are at least 1 apart.
        """
        assert isinstance(data, Tables)
        grades = [grade for row in data.splits["test"]["relevance"] for grade in row]
        # At least 1 apart, because mteb divides by the difference.
        return {"min_score": min(grades), "max_score": max(max(grades), min(grades) + 1)}

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Build a pair of text and each human summary. Rows that are blank, invalid or without a summary are left out.

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


class Translations(Layout):
    """Layout of pairs of sentences in two languages, for evaluation only. Their task in META.json is `pairs`."""

    task = "translations"
    fields = {"anchor": TEXT, "positive": TEXT}
    text_columns = ("sentence1", "sentence2")
    mteb_class, mteb_type, main_score = "AbsTaskBitextMining", "BitextMining", "f1"
    trainable = False

    def read_test(self, folder: Path, warnings: Warnings) -> Tables:
        """Read the test's pairs of sentences that translate each other as columns.

        Raises:
            DataSetError: if the file is invalid.
        """
        rows = read_records(folder, "test", self.fields, warnings)
        return Tables({"test": {"sentence1": [r["anchor"] for r in rows], "sentence2": [r["positive"] for r in rows]}})

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Build a pair for each sentence and its translation.

        Rows with a blank first sentence are recorded as left out.

        Raises:
            DataSetError: if a row has no translation.
        """
        return rows.build_field_pairs("anchor", "positive")
