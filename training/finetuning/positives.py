"""Anchor–positive pairs of a data set, by its task: positives only, as the REZE paper's Appendix C.1 makes them.

| task | anchor | positive | what is left out |
|---|---|---|---|
| retrieval | query | each relevant document | queries and documents nobody judged relevant |
| reranking | query | each positive | queries without one |
| classification | text | the label's description, else its name | |
| pair_classification | first text | second text | pairs not labelled 1 |
| summarization | document | each reference summary | rows whose `valid` is false |
| clustering | some texts of a cluster, a line each | the cluster's name | |
| sts | first sentence | second sentence | scores below four fifths of the scale |
| pairs | anchor | positive | |

STS has no place in that appendix; a high score is its explicit positive.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from string import digits, punctuation, whitespace
from typing import Any

from training.errors import DataSetError
from training.evaluation.records import NAMED_MOST, Record, Warnings, is_label, is_number, is_texts, shortened
from training.finetuning.datasets import DataSet, FileDataSet
from training.finetuning.job import SourceSettings

PAIRED_LINES = ("pairs", "retrieval")
"""Tasks of which a file of JSON lines holds an anchor and a positive each."""
STS_SHARE = 0.8
"""Of the scale of scores: 4 of 5 is where STS begins to say "mostly equivalent"."""


@dataclass(frozen=True)
class Pair:
    """An anchor with its positive.

    Attributes:
        anchor: a text.
        positive: what belongs to it.
        place: the row it comes from.
        texts: whose overlap with other data counts; the members of a cluster's anchor, else anchor and positive.
        negatives: hard ones that its row gives.
    """

    anchor: str
    positive: str
    place: str
    texts: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The texts that must not be known elsewhere."""
        return self.texts or (self.anchor, self.positive)


@dataclass(frozen=True)
class Found:
    """The pairs of a data set: from which split, of how many rows, and what was left out."""

    pairs: list[Pair]
    split: str
    rows: int
    dropped: Warnings


class Rows:
    """A data set's split while pairs are made of it: rows counted, what is left out noted."""

    def __init__(self, data: DataSet, split: str, settings: SourceSettings) -> None:
        self.data, self.split, self.settings = data, split, settings
        self.count = 0
        self.dropped = Warnings()

    def read(self, *fields: str) -> Iterator[Record]:
        """The rows of the split, which must have the fields."""
        for record in self.data.rows(self.split):
            require(record, fields)
            self.count += 1
            yield record

    def texts(self, *fields: str) -> Iterator[Record]:
        """The rows whose first field holds a text; the others are left out with their place."""
        for record in self.read(*fields):
            if blank(record[fields[0]]):
                self.dropped.add("blank text", record.place)
            else:
                yield record

    def paired(self, anchor: str, positive: str, keep: Callable[[Record], bool] = lambda record: True) -> list[Pair]:
        """Rows that hold both texts.

        Raises:
            DataSetError: for rows without a positive, by their places: a relation needs both.
        """
        pairs, missing = [], []
        for record in self.data.rows(self.split):
            self.count += 1
            require(record, (anchor,))
            if not keep(record):
                continue
            if blank(record.get(positive)):
                missing.append(record.place)
            elif blank(record[anchor]):
                self.dropped.add("blank text", record.place)
            else:
                negatives = self.negatives_of(record)
                pairs.append(Pair(text_of(record, anchor), text_of(record, positive), record.place, (), negatives))
        if missing:
            more = f" and {len(missing) - NAMED_MOST} more" if len(missing) > NAMED_MOST else ""
            raise DataSetError(f"no {positive!r} at {', '.join(missing[:NAMED_MOST])}{more}: every pair needs one")
        return pairs

    def negatives_of(self, record: Record) -> tuple[str, ...]:
        """The hard negatives a row gives, without blank ones.

        Raises:
            DataSetError: if the job wants those the rows give, and this one has no such field.
        """
        field, which = self.settings.negative, self.settings.negatives
        if which in ("mined", "none") or (which is None and field not in record.fields):
            return ()
        require(record, (field,))
        return tuple(dict.fromkeys(texts_of(record, field)))


def find_pairs(data: DataSet, settings: SourceSettings) -> Found:
    """The pairs of a data set.

    Raises:
        DataSetError: if there is no split, a row lacks a field, or nothing positive is left.
    """
    splits = data.splits()
    if not splits:
        raise DataSetError(f"{data.name} has no split to train on")
    split = settings.split or splits[0]
    if split not in splits:
        raise DataSetError(f"{data.name} has no split {split!r}; it has {', '.join(splits)}")
    rows = Rows(data, split, settings)
    as_pairs = isinstance(data, FileDataSet) and data.task in PAIRED_LINES
    pairs = plain_pairs(rows) if as_pairs else MAKERS[data.task](rows)
    if not pairs:
        left = "; ".join(f"{len(places)} {why}" for why, places in rows.dropped.places.items()) or "it has no rows"
        raise DataSetError(f"{data.name} has no positive pair in {split}: {left}")
    return Found(pairs, split, rows.count, rows.dropped)


def retrieval_pairs(rows: Rows) -> list[Pair]:
    """Queries with each document judged relevant."""
    queries = {str(row["_id"]): text_of(row, "text") for row in records(rows.data, "queries", "_id", "text")}
    documents = {str(row["_id"]): document_text(row) for row in records(rows.data, "corpus", "_id", "text")}
    pairs = []
    for place, query, document, grade in rows.data.judgements(rows.split):
        rows.count += 1
        if grade <= 0:
            rows.dropped.add("judged not relevant", place)
        elif query not in queries or blank(queries[query]):
            rows.dropped.add("query missing or blank", place)
        elif document not in documents or blank(documents[document]):
            rows.dropped.add("document missing or blank", place)
        else:
            pairs.append(Pair(queries[query], documents[document], place))
    return pairs


def reranking_pairs(rows: Rows) -> list[Pair]:
    """Queries with each of their positives."""
    pairs = []
    for row in rows.texts("query", "positive"):
        positives = texts_of(row, "positive")
        if not positives:
            rows.dropped.add("query without a positive", row.place)
        negatives = rows.negatives_of(row) if rows.settings.negatives == "given" else ()
        pairs += [Pair(text_of(row, "query"), text, row.place, (), negatives) for text in positives]
    return pairs


def classification_pairs(rows: Rows) -> list[Pair]:
    """Texts with the text of their label."""
    found = list(rows.texts("text", "label"))
    texts = label_texts(rows, found)
    return [Pair(text_of(row, "text"), texts[str(row["label"])], row.place, (row["text"],)) for row in found]


def clustering_pairs(rows: Rows) -> list[Pair]:
    """Some texts of a cluster together, with its name; those left over make a smaller anchor."""
    found = [row for record in rows.read() for row in members(record)]
    clusters: dict[str, list[Record]] = {}
    for row in found:
        require(row, ("text", "label"))
        if blank(row["text"]):
            rows.dropped.add("blank text", row.place)
        else:
            clusters.setdefault(str(row["label"]), []).append(row)
    texts = label_texts(rows, found)
    size, pairs = rows.settings.texts_per_cluster, []
    for label, cluster in clusters.items():
        for start in range(0, len(cluster), size):
            group = [text_of(row, "text") for row in cluster[start : start + size]]
            pairs.append(Pair("\n".join(group), texts[label], cluster[start].place, tuple(group)))
    return pairs


def members(record: Record) -> list[Record]:
    """A row of a clustering as it stands, or the many that mteb's older data sets hold in one."""
    sentences, labels = record.get("sentences"), record.get("labels")
    if not isinstance(sentences, list) or not isinstance(labels, list):
        return [record]
    if len(sentences) != len(labels):
        raise DataSetError(f"{record.place}: {len(sentences)} sentences and {len(labels)} labels")
    return [Record(record.place, {"text": t, "label": x}) for t, x in zip(sentences, labels, strict=True)]


def same_meaning_pairs(rows: Rows) -> list[Pair]:
    """Pairs labelled 1."""

    def positive(row: Record) -> bool:
        require(row, ("label",))
        if str(row["label"]) not in ("0", "1"):
            raise DataSetError(f"{row.place}: 'label' must be 0 or 1, not {row['label']!r}")
        if str(row["label"]) == "0":
            rows.dropped.add("labelled 0", row.place)
        return str(row["label"]) == "1"

    return rows.paired("sentence1", "sentence2", positive)


def sts_pairs(rows: Rows) -> list[Pair]:
    """Pairs with a high score."""
    scores = []
    for row in rows.data.rows(rows.split):
        require(row, ("score",))
        if not is_number(row["score"]):
            raise DataSetError(f"{row.place}: 'score' must be a number, not {shortened(row['score'])}")
        scores.append(float(row["score"]))
    least = rows.settings.min_score
    if least is None:
        if not scores or min(scores) == max(scores):
            raise DataSetError("all scores are alike: none says that a pair means the same; set min_score")
        least = min(scores) + STS_SHARE * (max(scores) - min(scores))

    def positive(row: Record) -> bool:
        if row["score"] < least:
            rows.dropped.add(f"score below {least:g}", row.place)
        return bool(row["score"] >= least)

    return rows.paired("sentence1", "sentence2", positive)


def summarization_pairs(rows: Rows) -> list[Pair]:
    """Documents with each reference summary."""
    pairs = []
    for row in rows.texts("text", "human_summaries"):
        summaries = texts_of(row, "human_summaries")
        if row.get("valid") is False:
            rows.dropped.add("marked as not valid", row.place)
        elif not summaries:
            rows.dropped.add("document without a summary", row.place)
        else:
            pairs += [Pair(text_of(row, "text"), text, row.place) for text in summaries]
    return pairs


def plain_pairs(rows: Rows) -> list[Pair]:
    """Pairs as they stand."""
    return rows.paired(rows.settings.anchor, rows.settings.positive)


def label_texts(rows: Rows, found: list[Record]) -> dict[str, str]:
    """What each label says.

    Raises:
        DataSetError: for labels that are numbers and nothing says what they mean.
    """
    for row in found:
        if not is_label(row["label"]) or isinstance(row["label"], bool):
            raise DataSetError(f"{row.place}: 'label' must be a string or a number, not {shortened(row['label'])}")
    known: Mapping[str, str] = rows.data.labels() | rows.settings.labels
    texts = {label: known.get(label, label) for label in dict.fromkeys(str(row["label"]) for row in found)}
    silent = [label for label, text in texts.items() if not text.strip(digits + punctuation + whitespace)]
    if silent:
        named = ", ".join(repr(label) for label in silent[:NAMED_MOST])
        raise DataSetError(
            f"{rows.data.name} has labels without a text ({named}): the text is the positive. "
            "Give labels.json beside the rows, or labels in the job"
        )
    return texts


def records(data: DataSet, name: str, *fields: str) -> Iterator[Record]:
    """The rows of a file that must have the fields."""
    for record in data.rows(name):
        require(record, fields)
        yield record


def document_text(record: Record) -> str:
    """A document as mteb gives it to an encoder: the title before the text."""
    return f"{record.get('title') or ''} {text_of(record, 'text')}".strip()


def require(record: Record, fields: tuple[str, ...]) -> None:
    """Raise `DataSetError` for a field that is missing."""
    for name in fields:
        if name not in record.fields:
            raise DataSetError(f"{record.place}: no field {name!r}; it has {', '.join(record.fields) or 'none'}")


def text_of(record: Record, name: str) -> str:
    """A field that holds a text.

    Raises:
        DataSetError: if it holds something else.
    """
    if not isinstance(record[name], str):
        raise DataSetError(f"{record.place}: {name!r} must be a string, not {shortened(record[name])}")
    return str(record[name])


def texts_of(record: Record, name: str) -> list[str]:
    """The texts of a field that holds one or several, without blank ones.

    Raises:
        DataSetError: if it holds something else.
    """
    value = record[name]
    listed = [value] if isinstance(value, str) else value or []
    if not is_texts(listed):
        raise DataSetError(f"{record.place}: {name!r} must be texts, not {shortened(value)}")
    return [text for text in listed if not blank(text)]


def distinct_pairs(pairs: list[Pair]) -> list[Pair]:
    """Pairs without repetitions, in the order in which they first stand; each with the negatives of all its rows."""
    found: dict[tuple[str, str], Pair] = {}
    for pair in pairs:
        known = found.setdefault((pair.anchor, pair.positive), pair)
        if new := [text for text in pair.negatives if text not in known.negatives]:
            found[pair.anchor, pair.positive] = replace(known, negatives=(*known.negatives, *new))
    return list(found.values())


def blank(value: Any) -> bool:
    """Whether there is no text: none at all, or only spaces."""
    return value is None or (isinstance(value, str) and not value.strip())


MAKERS: dict[str, Callable[[Rows], list[Pair]]] = {
    "retrieval": retrieval_pairs,
    "reranking": reranking_pairs,
    "classification": classification_pairs,
    "pair_classification": same_meaning_pairs,
    "summarization": summarization_pairs,
    "clustering": clustering_pairs,
    "sts": sts_pairs,
    "pairs": plain_pairs,
}
"""How pairs are made, by the task of a data set."""
