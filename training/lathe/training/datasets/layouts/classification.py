"""Layout of texts with class labels."""

from pathlib import Path
from typing import Any

from lathe.training.datasets.contents import Tables
from lathe.training.datasets.layout import Layout
from lathe.training.datasets.pairs import Pair, PairRows
from lathe.training.datasets.records import LABEL, TEXT, Warnings, read_records, to_columns, warn_of_single_labels
from lathe.training.errors import DataSetError


class Classification(Layout):
    """Texts with labels: the test trains a classifier on rows of the training split."""

    task = "classification"
    fields = {"text": TEXT, "label": LABEL}
    text_columns = ("text",)
    test_splits = ("train", "test")
    mteb_class, mteb_type, main_score = "AbsTaskClassification", "Classification", "accuracy"

    def read_test(self, folder: Path, warnings: Warnings) -> Tables:
        """Read train and test texts with their labels, and return them as columns. A label becomes the number of its
        class in alphabetical order. A label that occurs once in a split, or in the test alone, adds a warning.

        Raises:
            DataSetError: if a file is invalid, or the training texts have fewer than two classes.
        """
        splits = {}
        for split in self.test_splits:
            rows = read_records(folder, split, self.fields, warnings)
            warn_of_single_labels(rows, warnings, split)
            splits[split] = rows

        # Labels are compared as text: 1 and "1" are the same class.
        trained = {str(row["label"]) for row in splits["train"]}
        for row in splits["test"]:
            if str(row["label"]) not in trained:
                warnings.add(f"label {str(row['label'])!r} is tested but never trained on", row.place)

        if len(trained) < 2:
            raise DataSetError(f"train.jsonl has one label only, {trained.pop()!r}: there is nothing to tell apart")

        names = sorted({str(row["label"]) for rows in splits.values() for row in rows})
        numbers = {name: number for number, name in enumerate(names)}  # of two, measures want to know which is positive

        def number(label: Any) -> int:
            return numbers[str(label)]

        return Tables({split: to_columns(rows, self.fields, label=number) for split, rows in splits.items()})

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Return a pair for each text, with the text of its label as the positive. Blank texts are recorded as left
        out.

        Raises:
            DataSetError: if a row lacks text or label, or a label has no text.
        """
        labelled = list(rows.read_nonblank("text", "label"))
        texts = rows.label_texts(labelled)
        return [Pair(row.text("text"), texts[str(row["label"])], row.place, (row["text"],)) for row in labelled]
