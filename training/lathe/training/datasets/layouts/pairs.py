"""Layout of anchors with positives."""

from pathlib import Path
from typing import Any

from lathe.training.datasets.contents import Search, Tables
from lathe.training.datasets.layout import Layout
from lathe.training.datasets.layouts.retrieval import RANKS
from lathe.training.datasets.pairs import Pair, PairRows
from lathe.training.datasets.records import TEXT, Warnings, find_file, read_records


class Pairs(Layout):
    """Pairs of an anchor and a positive.

    In two languages they are evaluated as translations.
    """

    task = "pairs"
    fields = {"anchor": TEXT, "positive": TEXT}
    mteb_class, mteb_type, main_score = "AbsTaskRetrieval", "Retrieval", "ndcg_at_10"

    def read_test(self, folder: Path, warnings: Warnings) -> Search:
        """Read the test's pairs, and return them as a search. Each anchor is a query, its positives are relevant, and
        all positives are the corpus.

        Raises:
            DataSetError: if the file is invalid.
        """
        rows = read_records(folder, "test", self.fields, warnings)
        documents = {text: f"d{index}" for index, text in enumerate(dict.fromkeys(row["positive"] for row in rows))}
        queries = {text: f"q{index}" for index, text in enumerate(dict.fromkeys(row["anchor"] for row in rows))}
        relevant: dict[str, dict[str, int]] = {}

        for row in rows:
            relevant.setdefault(queries[row["anchor"]], {})[documents[row["positive"]]] = 1

        corpus = {key: ("", text) for text, key in documents.items()}
        return Search(corpus, {key: text for text, key in queries.items()}, relevant)

    def mteb_attributes(self, data: Tables | Search) -> dict[str, Any]:
        """Return the cut-offs of the metrics."""
        return {"k_values": RANKS}

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Build a pair of each row, from the fields in the settings.

        Rows with a blank anchor are recorded as left out.

        Raises:
            DataSetError: if a row has no anchor field or no positive.
        """
        return rows.pair_fields(rows.settings.anchor, rows.settings.positive)

    def evaluated_task(self, folder: Path, language: str) -> str | None:
        """Return the task that the data set is evaluated as: `translations` if there are two languages, else `pairs`.
        The result is None if there is no test.
        """
        if find_file(folder, "test") is None:
            return None
        return "translations" if "-" in language else self.task
