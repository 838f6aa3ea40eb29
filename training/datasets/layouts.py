"""Readers of data sets in folders, one layout for each task.

| task | files |
|---|---|
| retrieval | `corpus.jsonl` {_id, text, title?}, `queries.jsonl` {_id, text}, `qrels/test.tsv` query, document, grade |
| reranking | `test.jsonl` {query, positive: [text], negative: [text]} |
| classification | `train.jsonl`, `test.jsonl` {text, label} |
| clustering | `test.jsonl` {text, label} |
| sts | `test.jsonl` {sentence1, sentence2, score} |
| pair_classification | `test.jsonl` {sentence1, sentence2, label: 0 or 1} |
| pairs | `test.jsonl` {anchor, positive} |
| summarization | `test.jsonl` {text, human_summaries: [text], machine_summaries: [text], relevance: [number]} |

Every JSON-lines file may be compressed as `.jsonl.gz`. All readers take the folder and a `Warnings` that receives what
is left out or looks wrong, and raise `DataSetError` if the data cannot be used.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from training.datasets.records import (
    ID,
    LABEL,
    NUMBER,
    NUMBERS,
    TEXT,
    TEXT_OR_BLANK,
    TEXTS,
    Record,
    Warnings,
    read_records,
    require_distinct,
    shortened,
)
from training.errors import DataSetError

Columns = dict[str, list[Any]]
"""Values of all rows by column name."""


@dataclass(frozen=True)
class Tables:
    """Columns of each split of a data set, for every task without a search."""

    splits: dict[str, Columns]


@dataclass(frozen=True)
class Search:
    """Corpus, queries and relevance judgements of a search task.

    Attributes:
        corpus: (title, text) of each document, by id.
        queries: text of each query, by id.
        relevant: grades of judged documents, by query id and document id.
        ranked: ids of the candidate documents by query id, for reranking; None to search the whole corpus.
    """

    corpus: dict[str, tuple[str, str]]
    queries: dict[str, str]
    relevant: dict[str, dict[str, int]]
    ranked: dict[str, list[str]] | None = None


def read_classification(folder: Path, warnings: Warnings) -> Tables:
    """Read train and test texts with class labels, numbered in alphabetical order of the classes.

    Raises:
        DataSetError: if a file is invalid, or the training texts have fewer than two classes.
    """
    fields = {"text": TEXT, "label": LABEL}
    splits = {}
    for split in ("train", "test"):
        rows = read_records(folder, split, fields, warnings)
        warn_of_single_labels(rows, warnings, split)
        splits[split] = rows
    trained = {str(row["label"]) for row in splits["train"]}
    for row in splits["test"]:
        if str(row["label"]) not in trained:
            warnings.add(f"label {str(row['label'])!r} is tested but never trained on", row.place)
    if len(trained) < 2:
        raise DataSetError(f"train.jsonl has one label only, {trained.pop()!r}: there is nothing to tell apart")
    names = sorted({str(row["label"]) for rows in splits.values() for row in rows})
    numbers = {name: number for number, name in enumerate(names)}  # of two, measures want to know which is positive

    def number(label: Any) -> int:
        """Return the number of a label's class."""
        return numbers[str(label)]

    return Tables({split: columns(rows, ("text", "label"), {"label": number}) for split, rows in splits.items()})


def read_clustering(folder: Path, warnings: Warnings) -> Tables:
    """Read test texts with their cluster labels.

    Raises:
        DataSetError: if the file is invalid, or has fewer than two labels.
    """
    rows = read_records(folder, "test", {"text": TEXT, "label": LABEL}, warnings)
    warn_of_single_labels(rows, warnings, "test")
    if len({str(row["label"]) for row in rows}) < 2:
        raise DataSetError("test.jsonl has one label only: there is nothing to tell apart")
    return Tables({"test": columns(rows, ("text", "label"), {"label": str})})


def read_sts(folder: Path, warnings: Warnings) -> Tables:
    """Read pairs of sentences with similarity scores by people.

    Raises:
        DataSetError: if the file is invalid, or all scores are equal.
    """
    fields = {"sentence1": TEXT, "sentence2": TEXT, "score": NUMBER}
    rows = read_records(folder, "test", fields, warnings)
    if len({row["score"] for row in rows}) < 2:
        raise DataSetError("test.jsonl gives every pair the same score: there is nothing to correlate with")
    return Tables({"test": columns(rows, tuple(fields), {"score": float})})


def read_pair_classification(folder: Path, warnings: Warnings) -> Tables:
    """Read pairs of sentences with label 1 if they are equivalent and 0 if not.

    Raises:
        DataSetError: if the file is invalid, has another label, or only one label.
    """
    fields = {"sentence1": TEXT, "sentence2": TEXT, "label": LABEL}
    rows = read_records(folder, "test", fields, warnings)
    for row in rows:
        if str(row["label"]) not in ("0", "1"):
            raise DataSetError(f"{row.place}: 'label' must be 0 or 1, not {row['label']!r}")
    if len({str(row["label"]) for row in rows}) < 2:
        raise DataSetError("test.jsonl has one label only: there is nothing to tell apart")
    return Tables({"test": columns(rows, tuple(fields), {"label": int})})


def read_translations(folder: Path, warnings: Warnings) -> Tables:
    """Read pairs of sentences that translate each other, as columns `sentence1` and `sentence2`.

    Raises:
        DataSetError: if the file is invalid.
    """
    rows = read_records(folder, "test", {"anchor": TEXT, "positive": TEXT}, warnings)
    return Tables({"test": {"sentence1": [r["anchor"] for r in rows], "sentence2": [r["positive"] for r in rows]}})


def read_pairs(folder: Path, warnings: Warnings) -> Search:
    """Read pairs as a search task: each anchor is a query, its positives are relevant, all positives are the corpus.

    Raises:
        DataSetError: if the file is invalid.
    """
    rows = read_records(folder, "test", {"anchor": TEXT, "positive": TEXT}, warnings)
    documents = list(dict.fromkeys(row["positive"] for row in rows))
    places = {text: f"d{index}" for index, text in enumerate(documents)}
    queries = {text: f"q{index}" for index, text in enumerate(dict.fromkeys(row["anchor"] for row in rows))}
    relevant: dict[str, dict[str, int]] = {}
    for row in rows:
        relevant.setdefault(queries[row["anchor"]], {})[places[row["positive"]]] = 1
    corpus = {places[text]: ("", text) for text in documents}
    return Search(corpus, {key: text for text, key in queries.items()}, relevant)


def read_summarization(folder: Path, warnings: Warnings) -> Tables:
    """Read texts with machine summaries, their grades by people, and human summaries; leave out incomplete rows.

    Raises:
        DataSetError: if the file is invalid, a row has not one grade for each machine summary, or no row is complete.
    """
    fields = {"text": TEXT, "human_summaries": TEXTS, "machine_summaries": TEXTS, "relevance": NUMBERS}
    rows = read_records(folder, "test", fields, warnings)
    kept = []
    for row in rows:
        if len(row["machine_summaries"]) != len(row["relevance"]):
            counts = f"{len(row['machine_summaries'])} machine summaries and {len(row['relevance'])} grades"
            raise DataSetError(f"{row.place}: {counts}; each needs its own")
        if not row["human_summaries"] or len(row["machine_summaries"]) < 2:
            warnings.add("rows left out because they have no human summary, or not two of machines", row.place)
        elif not all(text.strip() for text in row["human_summaries"] + row["machine_summaries"]):
            warnings.add("rows left out because a summary holds only spaces", row.place)
        else:
            kept.append(row)
    if not kept:
        raise DataSetError("test.jsonl has no row with a human summary and two of machines")
    return Tables({"test": columns(kept, tuple(fields), {})})


def read_reranking(folder: Path, warnings: Warnings) -> Search:
    """Read queries with positive and negative documents as a search among these; leave out queries that lack either.

    Raises:
        DataSetError: if the file is invalid, or no query has both.
    """
    fields = {"query": TEXT, "positive": TEXTS, "negative": TEXTS}
    corpus: dict[str, tuple[str, str]] = {}
    queries, relevant, ranked = {}, {}, {}
    ids: dict[str, str] = {}
    for number, row in enumerate(read_records(folder, "test", fields, warnings)):
        good, bad = ([text for text in row[name] if text.strip()] for name in ("positive", "negative"))
        if len(good) + len(bad) < len(row["positive"]) + len(row["negative"]):
            warnings.add("documents left out because they hold only spaces", row.place)
        if not good or not bad:
            warnings.add("queries left out because they have no positive or no negative document", row.place)
            continue
        for text in good + bad:
            corpus.setdefault(ids.setdefault(text, f"d{len(ids)}"), ("", text))
        key = f"q{number}"
        queries[key] = row["query"]
        relevant[key] = {ids[text]: 1 for text in good}
        ranked[key] = list(dict.fromkeys(ids[text] for text in good + bad))
    if not queries:
        raise DataSetError("test.jsonl has no query with a positive and a negative document")
    return Search(corpus, queries, relevant, ranked)


def read_retrieval(folder: Path, warnings: Warnings) -> Search:
    """Read corpus, queries and judgements of the test split; leave out judgements and queries that cannot be used.

    Raises:
        DataSetError: if a file is missing or invalid, an id is ambiguous, or no query has a relevant document.
    """
    documents = require_distinct(read_documents(folder, warnings), "_id", warnings)
    asked = require_distinct(read_records(folder, "queries", {"_id": ID, "text": TEXT}, warnings), "_id", warnings)
    relevant: dict[str, dict[str, int]] = {}
    for place, query, document, grade in read_judgements(folder / "qrels" / "test.tsv"):
        if query not in asked:
            warnings.add("judgements left out because their query is missing", f"{place} ({query})")
        elif document not in documents:
            warnings.add("judgements left out because their document is missing", f"{place} ({document})")
        else:
            relevant.setdefault(query, {})[document] = grade
    useful = {query: judged for query, judged in relevant.items() if max(judged.values()) > 0}
    for query in relevant:
        if query not in useful:
            warnings.add("queries left out because no document is judged relevant", query)
    if not useful:
        raise DataSetError("qrels/test.tsv judges no document relevant to any query")
    elsewhere = judged_elsewhere(folder)
    for query, row in asked.items():
        if query not in relevant and query not in elsewhere:
            warnings.add("queries left out because qrels has no judgement of them", f"{query} ({row.place})")
    corpus = {key: (row.get("title") or "", row["text"]) for key, row in documents.items()}
    return Search(corpus, {query: asked[query]["text"] for query in useful}, useful)


def read_documents(folder: Path, warnings: Warnings) -> list[Record]:
    """Read the records of the corpus; leave out, with a warning, documents whose text and title are both blank.

    Raises:
        DataSetError: if the file is missing or invalid, or a title is not a string.
    """
    kept = []
    for row in read_records(folder, "corpus", {"_id": ID, "text": TEXT_OR_BLANK}, warnings):
        if not isinstance(row.get("title"), str | None):
            raise DataSetError(f"{row.place}: 'title' must be a string, not {shortened(row['title'])}")
        if f"{row.get('title') or ''}{row['text']}".strip():
            kept.append(row)
        else:
            warnings.add("documents left out because they hold only spaces", row.place)
    return kept


def judged_elsewhere(folder: Path) -> set[str]:
    """Return the ids of queries that any split judges, so that their absence from the test split is no warning."""
    found = set()
    for path in folder.glob("qrels/*.tsv"):
        with suppress(DataSetError):  # nothing is asked of other splits
            found |= {query for _, query, _, _ in read_judgements(path)}
    return found


def read_judgements(path: Path) -> list[tuple[str, str, str, int]]:
    """Read a qrels file; return the place, query id, document id and grade of each line, grades rounded up.

    Raises:
        DataSetError: if the file is missing, empty or malformed.
    """
    name = f"qrels/{path.name}"
    if not path.is_file():
        raise DataSetError(f"{name} is missing")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataSetError(f"{name} cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        parts = line.split("\t")
        if not line.strip() or (number == 1 and parts[0] == "query-id"):
            continue
        try:
            query, document, grade = parts
            found.append((f"{name} line {number}", query, document, ceil(float(grade))))
        except (ValueError, OverflowError):
            wanted = "query-id, corpus-id, score with tabs between"
            raise DataSetError(f"{name} line {number}: not {wanted}: {line[:60]!r}") from None
    if not found:
        raise DataSetError(f"{name} has no rows")
    return found


def warn_of_single_labels(rows: list[Record], warnings: Warnings, split: str) -> None:
    """Add a warning for each label that occurs once in a split: it can be neither learned nor clustered."""
    counts = Counter(str(row["label"]) for row in rows)
    for row in rows:
        if counts[str(row["label"])] == 1:
            warnings.add(f"labels that occur once in {split}", f"{str(row['label'])!r} ({row.place})")


def columns(rows: list[Record], names: tuple[str, ...], types: dict[str, Callable[[Any], Any]]) -> Columns:
    """Convert rows to columns, with the named fields only; `types` has the conversion of a field, if it needs one."""
    return {name: [types.get(name, unchanged)(row[name]) for row in rows] for name in names}


def unchanged(value: Any) -> Any:
    """Return the value itself."""
    return value


READERS: dict[str, Callable[[Path, Warnings], Tables | Search]] = {
    "retrieval": read_retrieval,
    "reranking": read_reranking,
    "classification": read_classification,
    "clustering": read_clustering,
    "sts": read_sts,
    "pair_classification": read_pair_classification,
    "pairs": read_pairs,
    "translations": read_translations,
    "summarization": read_summarization,
}
"""Reader of a data set by its task; `pairs` in two languages are read as `translations`."""
