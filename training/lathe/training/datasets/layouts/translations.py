"""Layout of sentences with their translations."""

from pathlib import Path

from lathe.training.datasets.contents import Tables
from lathe.training.datasets.layout import Layout
from lathe.training.datasets.pairs import Pair, PairRows
from lathe.training.datasets.records import TEXT, Warnings, read_records


class Translations(Layout):
    """Pairs in two languages as they are evaluated.

    Jobs call them `pairs`.
    """

    task = "translations"
    fields = {"anchor": TEXT, "positive": TEXT}
    text_columns = ("sentence1", "sentence2")
    mteb_class, mteb_type, main_score = "AbsTaskBitextMining", "BitextMining", "f1"
    trainable = False

    def read_test(self, folder: Path, warnings: Warnings) -> Tables:
        """Read pairs of sentences that translate each other.

        Raises:
            DataSetError: if the file is invalid.
        """
        rows = read_records(folder, "test", self.fields, warnings)
        return Tables({"test": {"sentence1": [r["anchor"] for r in rows], "sentence2": [r["positive"] for r in rows]}})

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Build a pair of each sentence and its translation.

        Rows with a blank first sentence are recorded as left out.

        Raises:
            DataSetError: if a row has no translation.
        """
        return rows.pair_fields("anchor", "positive")
