"""Layout of searches in a corpus."""

from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

from lathe.training.datasets.contents import Search, Tables
from lathe.training.datasets.layout import SPLITS, Layout
from lathe.training.datasets.pairs import Judgement, Pair, PairRows, RowReader
from lathe.training.datasets.records import (
    ID,
    TEXT,
    TEXT_OR_BLANK,
    Record,
    Warnings,
    is_blank,
    read_records,
    require_distinct,
    shorten_value,
)
from lathe.training.errors import DataSetError, SourceError
from lathe.training.sources.lines import read_numbered_lines

RANKS = (1, 3, 5, 10, 20, 100)
"""Cut-offs k of retrieval metrics; mteb's own go to 1,000, more than local corpora need."""


class Retrieval(Layout):
    """Corpus, queries and graded judgements, one file of judgements for each split."""

    task = "retrieval"
    mteb_class, mteb_type, main_score = "AbsTaskRetrieval", "Retrieval", "ndcg_at_10"

    def read_test(self, folder: Path, warnings: Warnings) -> Search:
        """Read corpus, queries and relevance judgements of the test, check them, and return them as a search.

        Judgements of missing queries or documents are left out with a warning; so are queries of which no document is
        judged relevant. Queries that only other splits judge are left out without one.

        Raises:
            DataSetError: if a file is missing or invalid, an id is ambiguous, or no query has a relevant document.
        """
        documents = require_distinct(_read_documents(folder, warnings), "_id", warnings)
        query_rows = require_distinct(
            read_records(folder, "queries", {"_id": ID, "text": TEXT}, warnings), "_id", warnings
        )
        relevant: dict[str, dict[str, int]] = {}

        for place, query, document, grade in read_judgements(folder / "qrels" / "test.tsv"):
            if query not in query_rows:
                warnings.add("judgements left out because their query is missing", f"{place} ({query})")
            elif document not in documents:
                warnings.add("judgements left out because their document is missing", f"{place} ({document})")
            else:
                relevant.setdefault(query, {})[document] = grade

        useful_judgements = {query: judged for query, judged in relevant.items() if max(judged.values()) > 0}
        for query in relevant:
            if query not in useful_judgements:
                warnings.add("queries left out because no document is judged relevant", query)

        if not useful_judgements:
            raise DataSetError("qrels/test.tsv judges no document relevant to any query")

        # One file of queries serves all splits, so a query of another split is no mistake.
        judged_anywhere = _read_judged_queries(folder)
        for query, row in query_rows.items():
            if query not in relevant and query not in judged_anywhere:
                warnings.add("queries left out because qrels has no judgement of them", f"{query} ({row.place})")

        corpus = {key: (row.get("title") or "", row["text"]) for key, row in documents.items()}
        return Search(corpus, {query: query_rows[query]["text"] for query in useful_judgements}, useful_judgements)

    def mteb_attributes(self, data: Tables | Search) -> dict[str, Any]:
        """Return the cut-offs of the metrics, and that a query's own text is left out of its results."""
        return {"k_values": RANKS, "ignore_identical_ids": True}

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Return a pair of query and document for each positive relevance judgement of the split. Other judgements are
        recorded as left out. Queries and corpus are read into memory.

        Raises:
            DataSetError: if a file cannot be read, or a query or document has no id or text.
        """
        queries = {str(row["_id"]): row.text("text") for row in _read_identified_rows(rows.data, "queries")}
        documents = {str(row["_id"]): _join_title_and_text(row) for row in _read_identified_rows(rows.data, "corpus")}
        pairs = []

        for place, query, document, grade in rows.data.read_judgements(rows.split):
            rows.count += 1
            if grade <= 0:
                rows.dropped.add("judged not relevant", place)
            elif query not in queries or is_blank(queries[query]):
                rows.dropped.add("query missing or blank", place)
            elif document not in documents or is_blank(documents[document]):
                rows.dropped.add("document missing or blank", place)
            else:
                pairs.append(Pair(queries[query], documents[document], place))

        return pairs

    def list_splits(self, folder: Path) -> list[str]:
        """List the splits that have a file of judgements."""
        return [split for split in SPLITS if (folder / "qrels" / f"{split}.tsv").is_file()]

    def count_rows(self, data: RowReader, split: str) -> int:
        """Count the judgements of a split."""
        return len(data.read_judgements(split))

    def read_corpus(self, data: RowReader) -> Iterator[str]:
        """Yield the texts of the documents, with their titles, except blank ones."""
        return (_join_title_and_text(row) for row in data.read_rows("corpus") if not is_blank(row.get("text")))


def read_judgements(path: Path) -> list[Judgement]:
    """Read the relevance judgements in a qrels file. Each is a place for messages, a query id, a document id and a
    grade, which is rounded up.

    Raises:
        DataSetError: if the file is missing, empty or malformed.
    """
    name = f"qrels/{path.name}"
    if not path.is_file():
        raise DataSetError(f"{name} is missing")

    try:
        lines = [(number, line.decode()) for number, line in read_numbered_lines(path)]
    except (SourceError, UnicodeDecodeError) as error:
        raise DataSetError(f"{name} cannot be read: {error}") from error

    judgements = []
    for number, line in lines:
        parts = [part.strip() for part in line.split("\t")]
        # The header that mteb writes may be missing.
        if number == 1 and parts[0] == "query-id":
            continue

        try:
            query, document, grade = parts
            judgements.append((f"{name} line {number}", query, document, ceil(float(grade))))
        except (ValueError, OverflowError):
            columns = "query-id, corpus-id, score with tabs between"
            raise DataSetError(f"{name} line {number}: not {columns}: {line[:60]!r}") from None

    if not judgements:
        raise DataSetError(f"{name} has no rows")

    return judgements


def _read_documents(folder: Path, warnings: Warnings) -> list[Record]:
    """Read and check the documents of the corpus, and return them. Documents whose text and title are both blank are
    left out, with a warning.

    Raises:
        DataSetError: if the file is invalid, or a title is not a string.
    """
    kept = []
    for row in read_records(folder, "corpus", {"_id": ID, "text": TEXT_OR_BLANK}, warnings):
        if not isinstance(row.get("title"), str | None):
            raise DataSetError(f"{row.place}: 'title' must be a string, not {shorten_value(row['title'])}")
        if f"{row.get('title') or ''}{row['text']}".strip():
            kept.append(row)
        else:
            warnings.add("documents left out because they hold only spaces", row.place)

    return kept


def _read_judged_queries(folder: Path) -> set[str]:
    """Return the ids of the queries that any split judges. Such a query may be missing in the test split without a
    warning.
    """
    judged = set()
    for path in folder.glob("qrels/*.tsv"):
        with suppress(DataSetError):  # nothing is asked of other splits
            judged |= {query for _, query, _, _ in read_judgements(path)}
    return judged


def _read_identified_rows(data: RowReader, name: str) -> Iterator[Record]:
    """Yield the rows of `corpus` or `queries` (`name` says which), each checked to have an id and a text.

    Raises:
        DataSetError: at a row without an id or a text.
    """
    for record in data.read_rows(name):
        record.require("_id", "text")
        yield record


def _join_title_and_text(record: Record) -> str:
    """Return a document's title and text, joined by a space, as mteb passes it to an encoder."""
    return f"{record.get('title') or ''} {record.text('text')}".strip()
