"""Layouts of search tasks: retrieval from a corpus, reranking of candidates, and pairs of anchors and positives."""

from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

from lathe.training.datasets.layout import SPLITS, Layout
from lathe.training.datasets.pairs import Judgement, Pair, PairRows, RowReader
from lathe.training.datasets.records import (
    ID,
    TEXT,
    TEXT_OR_BLANK,
    TEXTS,
    Record,
    Search,
    Tables,
    Warnings,
    find_file,
    index_by_id,
    is_blank,
    read_records,
    shorten_value,
)
from lathe.training.errors import DataSetError, SourceError
from lathe.training.sources.lines import read_numbered_lines

RANKS = (1, 3, 5, 10, 20, 100)
"""Cut-offs k of retrieval metrics. mteb's default goes to 1,000, more than local corpora need."""


class Retrieval(Layout):
    """Layout of a corpus, queries and graded relevance judgements, with one file of judgements for each split."""

    task = "retrieval"
    mteb_class, mteb_type, main_score = "AbsTaskRetrieval", "Retrieval", "ndcg_at_10"

    def read_test(self, folder: Path, warnings: Warnings) -> Search:
        """Read and check the test as a search, without queries that lack a relevant document. Raise if none is left.

        Judgements of missing queries or documents are left out with a warning, as are queries without a relevant
        document. Queries that only other splits judge are left out without a warning.

        Raises:
            DataSetError: if a file is missing or invalid, an id is ambiguous, or no query has a relevant document.
        """
        documents = index_by_id(_read_documents(folder, warnings), "_id", warnings)
        query_rows = index_by_id(read_records(folder, "queries", {"_id": ID, "text": TEXT}, warnings), "_id", warnings)
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

        # All splits share one file of queries, so a query of another split is not a mistake.
        judged_anywhere = _read_judged_queries(folder)
        for query, row in query_rows.items():
            if query not in relevant and query not in judged_anywhere:
                warnings.add("queries left out because qrels has no judgement for them", f"{query} ({row.place})")

        corpus = {key: (row.get("title") or "", row["text"]) for key, row in documents.items()}
        return Search(corpus, {query: query_rows[query]["text"] for query in useful_judgements}, useful_judgements)

    def build_mteb_attributes(self, data: Tables | Search) -> dict[str, Any]:
        """Return the class attributes of the mteb task: the cut-offs, and that results exclude the query's own text."""
        return {"k_values": RANKS, "ignore_identical_ids": True}

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Build a pair of query and document for each judgement above 0, unless a text is missing or blank.

        Other judgements, and judgements of missing or blank texts, are recorded as left out.

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
        """Return the names of the splits that have a file of relevance judgements."""
        return [split for split in SPLITS if (folder / "qrels" / f"{split}.tsv").is_file()]

    def count_rows(self, data: RowReader, split: str) -> int:
        """Count the relevance judgements of a split."""
        return len(data.read_judgements(split))

    def read_corpus(self, data: RowReader) -> Iterator[str]:
        """Return an iterator over the texts of the documents, with their titles.

        Documents with a blank text are left out.
        """
        return (_join_title_and_text(row) for row in data.read_rows("corpus") if not is_blank(row.get("text")))


def read_judgements(path: Path) -> list[Judgement]:
    """Read the relevance judgements of a qrels file. A missing, empty or malformed file raises.

    A judgement consists of a place for messages, a query id, a document id and a grade, rounded up. The header line may
    be missing.

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
            columns = "query-id, corpus-id and score, separated by tabs"
            raise DataSetError(f"{name} line {number} must hold {columns}, not {line[:60]!r}") from None

    if not judgements:
        raise DataSetError(f"{name} has no rows")

    return judgements


def _read_documents(folder: Path, warnings: Warnings) -> list[Record]:
    """Read and check the corpus, without blank documents. A title that is not a string raises.

    Documents whose text and title are both blank are left out, with a warning.

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
    """Collect the ids of the queries in the relevance judgements of all splits, without files that cannot be read."""
    judged = set()
    for path in folder.glob("qrels/*.tsv"):
        with suppress(DataSetError):  # other splits need not be valid
            judged |= {query for _, query, _, _ in read_judgements(path)}
    return judged


def _read_identified_rows(data: RowReader, name: str) -> Iterator[Record]:
    """Yield the rows of `corpus` or `queries`. A row without an id or a text raises.

    Raises:
        DataSetError: at a row without an id or a text.
    """
    for record in data.read_rows(name):
        record.require("_id", "text")
        yield record


def _join_title_and_text(record: Record) -> str:
    """Return a document's title and text, joined by a space, as mteb passes it to an encoder."""
    return f"{record.get('title') or ''} {record.text('text')}".strip()


class Reranking(Layout):
    """Queries, each with positive and negative documents."""

    task = "reranking"
    fields = {"query": TEXT, "positive": TEXTS, "negative": TEXTS}
    mteb_class, mteb_type, main_score = "AbsTaskRetrieval", "Reranking", "map_at_1000"

    def read_test(self, folder: Path, warnings: Warnings) -> Search:
        """Read a search in which each query ranks its own documents. Queries without positive or negative are left out.

        Queries without a positive or without a negative are left out, with a warning. If no query is left, this raises.
        Blank documents are left out too.

        Raises:
            DataSetError: if the file is invalid, or no query has both a positive and a negative.
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

    def build_mteb_attributes(self, data: Tables | Search) -> dict[str, Any]:
        """Return the class attribute of the mteb task: the cut-offs of the metrics and of the main score."""
        return {"k_values": (*RANKS, 1000)}

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Build a pair of a row's query and each positive. Rows with a blank query or without a positive are left out.

        Rows with a blank query or without a positive are recorded as left out. The row's negatives are used only if
        `negatives` of the settings is `given`.

        Raises:
            DataSetError: if a row lacks a field, or a field is not text.
        """
        pairs = []
        for row in rows.read_nonblank("query", "positive"):
            positives = row.texts("positive")
            if not positives:
                rows.dropped.add("query without a positive", row.place)
            negatives = rows.list_negatives(row) if rows.settings.negatives == "given" else ()
            pairs += [Pair(row.text("query"), text, row.place, (), negatives) for text in positives]

        return pairs


class Pairs(Layout):
    """Layout of pairs of an anchor and a positive. Pairs in two languages are evaluated as translations."""

    task = "pairs"
    fields = {"anchor": TEXT, "positive": TEXT}
    mteb_class, mteb_type, main_score = "AbsTaskRetrieval", "Retrieval", "ndcg_at_10"

    def read_test(self, folder: Path, warnings: Warnings) -> Search:
        """Read the test's pairs as a search of the anchors in a corpus of all positives. An invalid file raises.

        The relevant documents of an anchor are its positives.

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

    def build_mteb_attributes(self, data: Tables | Search) -> dict[str, Any]:
        """Return the class attribute of the mteb task: the cut-offs of the metrics."""
        return {"k_values": RANKS}

    def build_pairs(self, rows: PairRows) -> list[Pair]:
        """Build a pair for each row, from the two fields that the settings name.

        Rows with a blank anchor are recorded as left out. A row without a positive raises.

        Raises:
            DataSetError: if a row has no anchor field or no positive.
        """
        return rows.build_field_pairs(rows.settings.anchor, rows.settings.positive)

    def choose_evaluation_task(self, folder: Path, language: str) -> str | None:
        """Return `translations` for a data set in two languages, else `pairs`. The result is None without a test."""
        if find_file(folder, "test") is None:
            return None
        return "translations" if "-" in language else self.task
