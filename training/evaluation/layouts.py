"""The rows of a data set, by what its task wants: the layouts of folders of data.

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

Every file may be packed as `.jsonl.gz`.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from training.errors import DataSetError
from training.evaluation.records import (
    Record,
    Warnings,
    is_id,
    is_label,
    is_number,
    is_numbers,
    is_text,
    is_texts,
    read_records,
    require_distinct,
    shortened,
)

Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class Tables:
    """Splits of columns, for every task but those that search."""

    splits: dict[str, Columns]


@dataclass(frozen=True)
class Search:
    """What a query should find.

    Attributes:
        corpus: documents by id, title and text.
        queries: texts by id.
        relevant: by query, the grade of each judged document.
        ranked: by query, the documents to choose from; None for the whole corpus.
    """

    corpus: dict[str, tuple[str, str]]
    queries: dict[str, str]
    relevant: dict[str, dict[str, int]]
    ranked: dict[str, list[str]] | None = None


def read_classification(folder: Path, warnings: Warnings) -> Tables:
    """Texts with their classes, to train on and to test on."""
    fields = {"text": is_text, "label": is_label}
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
        return numbers[str(label)]

    return Tables({split: columns(rows, ("text", "label"), {"label": number}) for split, rows in splits.items()})


def read_clustering(folder: Path, warnings: Warnings) -> Tables:
    """Texts with the cluster each belongs to."""
    rows = read_records(folder, "test", {"text": is_text, "label": is_label}, warnings)
    warn_of_single_labels(rows, warnings, "test")
    if len({str(row["label"]) for row in rows}) < 2:
        raise DataSetError("test.jsonl has one label only: there is nothing to tell apart")
    return Tables({"test": columns(rows, ("text", "label"), {"label": str})})


def read_sts(folder: Path, warnings: Warnings) -> Tables:
    """Pairs of sentences with how similar people find them."""
    fields = {"sentence1": is_text, "sentence2": is_text, "score": is_number}
    rows = read_records(folder, "test", fields, warnings)
    if len({row["score"] for row in rows}) < 2:
        raise DataSetError("test.jsonl gives every pair the same score: there is nothing to correlate with")
    return Tables({"test": columns(rows, tuple(fields), {"score": float})})


def read_pair_classification(folder: Path, warnings: Warnings) -> Tables:
    """Pairs of sentences that say the same (1) or not (0)."""
    fields = {"sentence1": is_text, "sentence2": is_text, "label": is_label}
    rows = read_records(folder, "test", fields, warnings)
    for row in rows:
        if str(row["label"]) not in ("0", "1"):
            raise DataSetError(f"{row.place}: 'label' must be 0 or 1, not {row['label']!r}")
    if len({str(row["label"]) for row in rows}) < 2:
        raise DataSetError("test.jsonl has one label only: there is nothing to tell apart")
    return Tables({"test": columns(rows, tuple(fields), {"label": int})})


def read_translations(folder: Path, warnings: Warnings) -> Tables:
    """Sentences with their translations."""
    rows = read_records(folder, "test", {"anchor": is_text, "positive": is_text}, warnings)
    return Tables({"test": {"sentence1": [r["anchor"] for r in rows], "sentence2": [r["positive"] for r in rows]}})


def read_pairs(folder: Path, warnings: Warnings) -> Search:
    """Anchors that should find their own positive among all."""
    rows = read_records(folder, "test", {"anchor": is_text, "positive": is_text}, warnings)
    documents = list(dict.fromkeys(row["positive"] for row in rows))
    places = {text: f"d{index}" for index, text in enumerate(documents)}
    queries = {text: f"q{index}" for index, text in enumerate(dict.fromkeys(row["anchor"] for row in rows))}
    relevant: dict[str, dict[str, int]] = {}
    for row in rows:
        relevant.setdefault(queries[row["anchor"]], {})[places[row["positive"]]] = 1
    corpus = {places[text]: ("", text) for text in documents}
    return Search(corpus, {key: text for text, key in queries.items()}, relevant)


def read_summarization(folder: Path, warnings: Warnings) -> Tables:
    """Machines' summaries that people graded, beside people's own."""
    fields = {"text": is_text, "human_summaries": is_texts, "machine_summaries": is_texts, "relevance": is_numbers}
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
    """Queries with documents that answer them and others that do not."""
    fields = {"query": is_text, "positive": is_texts, "negative": is_texts}
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
    """Queries, documents, and which of these answer which."""
    documents = require_distinct(read_documents(folder, warnings), "_id", warnings)
    asked = require_distinct(
        read_records(folder, "queries", {"_id": is_id, "text": is_text}, warnings), "_id", warnings
    )
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
    """The corpus; a document is blank only if its title is too."""

    def or_empty(value: Any) -> bool:
        """A string."""
        return is_text(value)

    kept = []
    for row in read_records(folder, "corpus", {"_id": is_id, "text": or_empty}, warnings):
        if not isinstance(row.get("title"), str | None):
            raise DataSetError(f"{row.place}: 'title' must be a string, not {shortened(row['title'])}")
        if f"{row.get('title') or ''}{row['text']}".strip():
            kept.append(row)
        else:
            warnings.add("documents left out because they hold only spaces", row.place)
    return kept


def judged_elsewhere(folder: Path) -> set[str]:
    """Queries of other splits, whose absence from this one is as it should be."""
    found = set()
    for path in folder.glob("qrels/*.tsv"):
        with suppress(DataSetError):  # nothing is asked of other splits
            found |= {query for _, query, _, _ in read_judgements(path)}
    return found


def read_judgements(path: Path) -> list[tuple[str, str, str, int]]:
    """Where each judgement stands, its query, its document, its grade.

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
    """Name the labels that stand once: nothing can be learnt of them, nothing clustered with them."""
    counts = Counter(str(row["label"]) for row in rows)
    for row in rows:
        if counts[str(row["label"])] == 1:
            warnings.add(f"labels that occur once in {split}", f"{str(row['label'])!r} ({row.place})")


def columns(rows: list[Record], names: tuple[str, ...], types: dict[str, Callable[[Any], Any]]) -> Columns:
    """Rows as columns."""
    return {name: [types.get(name, unchanged)(row[name]) for row in rows] for name in names}


def unchanged(value: Any) -> Any:
    """The value itself."""
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
"""How a data set is read, by its task; pairs in two languages are translations."""
