"""Layouts of texts with class labels, and with cluster labels."""

from pathlib import Path
from typing import Any

from lathe.training.datasets.layout import Layout
from lathe.training.datasets.pairs import Pair, PairRows
from lathe.training.datasets.records import (
    LABEL,
    TEXT,
    Record,
    Search,
    Tables,
    Warnings,
    convert_to_columns,
    is_blank,
    read_records,
    refuse_single_label,
    warn_of_single_rows,
)
from lathe.training.errors import DataSetError


class Classification(Layout):
    """Layout of texts with class labels. The test trains a classifier on rows of the training split."""

    task = "classification"
    fields = {"text": TEXT, "label": LABEL}
    text_columns = ("text",)
    test_splits = ("train", "test")
    mteb_class, mteb_type, main_score = "AbsTaskClassification", "Classification", "accuracy"

    def read_test(self, folder: Path, warnings: Warnings) -> Tables:
        """Read training and test texts as columns, with labels as class numbers. Fewer than two classes raise.

        Classes are in alphabetical order. A label that occurs once in a split, or only in the test, adds a warning.

        Raises:
            DataSetError: if a file is invalid, or the training texts have fewer than two classes.
        """
        splits = {}
        for split in self.test_splits:
            rows = read_records(folder, split, self.fields, warnings)
            warn_of_single_rows(rows, warnings, split)
            splits[split] = rows

        # Labels are compared as text: 1 and "1" are the same class.
        trained = {str(row["label"]) for row in splits["train"]}
        for row in splits["test"]:
            if str(row["label"]) not in trained:
                warnings.add(f"label {str(row['label'])!r} is tested but never trained on", row.place)

        if len(trained) < 2:
            raise DataSetError(f"train.jsonl has only one label, {trained.pop()!r}; at least two are needed")

        names = sorted({str(row["label"]) for rows in splits.values() for row in rows})
        numbers = {name: number for number, name in enumerate(names)}  # binary metrics need to know the positive class

        def number(label: Any) -> int:
            return numbers[str(label)]

        return Tables({split: convert_to_columns(rows, self.fields, label=number) for split, rows in splits.items()})

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Build a pair for each text, with the text of its label as the positive.

        Rows with a blank text are recorded as left out.

        Raises:
            DataSetError: if a row lacks text or label, or a label has no text.
        """
        labelled = list(rows.read_nonblank("text", "label"))
        texts = rows.find_label_texts(labelled)
        return [Pair(row.text("text"), texts[str(row["label"])], row.place, (row["text"],)) for row in labelled]


class Clustering(Layout):
    """Layout of texts with cluster labels."""

    task = "clustering"
    fields = {"text": TEXT, "label": LABEL}
    text_columns = ("text",)
    mteb_class, mteb_type, main_score = "AbsTaskClustering", "Clustering", "v_measure"

    def read_test(self, folder: Path, warnings: Warnings) -> Tables:
        """Read the test texts with their cluster labels as columns. A label that occurs once adds a warning.

        Raises:
            DataSetError: if the file is invalid, or has fewer than two labels.
        """
        rows = read_records(folder, "test", self.fields, warnings)
        warn_of_single_rows(rows, warnings, "test")
        refuse_single_label(rows)
        return Tables({"test": convert_to_columns(rows, self.fields, label=str)})

    def build_mteb_attributes(self, data: Tables | Search) -> dict[str, Any]:
        """Return the class attributes of the mteb task: columns, and how many texts each clustering samples.

        Each of mteb's ten clusterings samples as many texts as there are.
        """
        assert isinstance(data, Tables)
        sampled = {
            "max_fraction_of_documents_to_embed": None,
            "max_documents_per_cluster": len(data.splits["test"]["text"]),
        }
        return {"input_column_name": "text", "label_column_name": "label"} | sampled

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Build pairs of a cluster's consecutive texts, as the anchor, and the label's text. Blank texts are left out.

        The texts are joined by newlines. An anchor holds `texts_per_cluster` texts; the last anchor of a cluster may
        hold fewer. Rows of lists, as in old mteb data sets, are split into rows. Blank texts are recorded as left out.

        Raises:
            DataSetError: if a row lacks text or label, or a label has no text.
        """
        labelled = [row for record in rows.read() for row in _split_row_of_lists(record)]
        clusters: dict[str, list[Record]] = {}
        for row in labelled:
            row.require("text", "label")
            if is_blank(row["text"]):
                rows.dropped.add("blank text", row.place)
            else:
                clusters.setdefault(str(row["label"]), []).append(row)

        texts = rows.find_label_texts(labelled)
        size, pairs = rows.settings.texts_per_cluster, []
        for label, cluster in clusters.items():
            for start in range(0, len(cluster), size):
                group = [row.text("text") for row in cluster[start : start + size]]
                pairs.append(Pair("\n".join(group), texts[label], cluster[start].place, tuple(group)))

        return pairs


def _split_row_of_lists(record: Record) -> list[Record]:
    """Split a row of lists of sentences and labels into records, or return another row alone. Unequal lengths raise.

    Old mteb data sets have rows of lists.

    Raises:
        DataSetError: if the lists have different lengths.
    """
    sentences, labels = record.get("sentences"), record.get("labels")
    if not isinstance(sentences, list) or not isinstance(labels, list):
        return [record]
    if len(sentences) != len(labels):
        raise DataSetError(f"{record.place}: {len(sentences)} sentences and {len(labels)} labels, not equally many")
    return [Record(record.place, {"text": t, "label": x}) for t, x in zip(sentences, labels, strict=True)]
