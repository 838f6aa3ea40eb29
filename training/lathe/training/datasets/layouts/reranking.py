"""Layout of searches among given candidates."""

from pathlib import Path
from typing import Any

from lathe.training.datasets.contents import Search, Tables
from lathe.training.datasets.layout import Layout
from lathe.training.datasets.layouts.retrieval import RANKS
from lathe.training.datasets.pairs import Pair, PairRows
from lathe.training.datasets.records import TEXT, TEXTS, Warnings, read_records
from lathe.training.errors import DataSetError


class Reranking(Layout):
    """Queries, each with positive and negative documents."""

    task = "reranking"
    fields = {"query": TEXT, "positive": TEXTS, "negative": TEXTS}
    mteb_class, mteb_type, main_score = "AbsTaskRetrieval", "Reranking", "map_at_1000"

    def read_test(self, folder: Path, warnings: Warnings) -> Search:
        """Read the test's queries with their positive and negative documents, and return them as a search. Each query
        ranks its own documents only. Queries without a positive or a negative are left out.

        Raises:
            DataSetError: if the file is invalid, or no query has both.
        """
        corpus: dict[str, tuple[str, str]] = {}
        queries, relevant, ranked = {}, {}, {}
        ids: dict[str, str] = {}

        for number, row in enumerate(read_records(folder, "test", self.fields, warnings)):
            positives, negatives = ([text for text in row[name] if text.strip()] for name in ("positive", "negative"))
            if len(positives) + len(negatives) < len(row["positive"]) + len(row["negative"]):
                warnings.add("documents left out because they hold only spaces", row.place)

            if not positives or not negatives:
                warnings.add("queries left out because they have no positive or no negative document", row.place)
                continue

            for text in positives + negatives:
                # A text that several queries have as a candidate is one document.
                corpus.setdefault(ids.setdefault(text, f"d{len(ids)}"), ("", text))

            key = f"q{number}"
            queries[key] = row["query"]
            relevant[key] = {ids[text]: 1 for text in positives}
            ranked[key] = list(dict.fromkeys(ids[text] for text in positives + negatives))

        if not queries:
            raise DataSetError("test.jsonl has no query with a positive and a negative document")

        return Search(corpus, queries, relevant, ranked)

    def mteb_attributes(self, data: Tables | Search) -> dict[str, Any]:
        """Return the cut-offs of the metrics, with that of the main score."""
        return {"k_values": (*RANKS, 1000)}

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Return a pair of query and document for each positive document of each row.

        Blank queries, and queries without a positive, are recorded as left out. The row's negatives are used only if
        the settings say `given`.

        Raises:
            DataSetError: if a row lacks a field, or a field is not text.
        """
        pairs = []
        for row in rows.read_nonblank("query", "positive"):
            positives = row.texts("positive")
            if not positives:
                rows.dropped.add("query without a positive", row.place)
            negatives = rows.supplied_negatives(row) if rows.settings.negatives == "given" else ()
            pairs += [Pair(row.text("query"), text, row.place, (), negatives) for text in positives]

        return pairs
