"""Anchor–positive pairs of a data set, by its task: positives only, as the REZE paper's Appendix C.1 makes them.

| task | anchor | positive | left out |
|---|---|---|---|
| retrieval | query | each relevant document | queries and documents without a relevance judgement |
| reranking | query | each positive | queries without one |
| classification | text | the label's description, else its name | |
| pair_classification | first text | second text | pairs not labelled 1 |
| summarization | document | each reference summary | rows whose `valid` is false |
| clustering | some texts of a cluster, one per line | the cluster's name | |
| sts | first sentence | second sentence | scores below four fifths of the scale |
| pairs | anchor | positive | |

STS is not in that appendix; a high score is its explicit positive.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from string import digits, punctuation, whitespace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from training.datasets.data_sets import DataSet, FileDataSet
from training.datasets.records import NAMED_MOST, Record, Warnings, is_label, is_number, is_texts, shortened
from training.errors import DataSetError
from training.settings import Count, Settings

PAIRED_LINES = ("pairs", "retrieval")
"""Tasks for which each line of a JSON lines file holds an anchor and a positive."""
STS_SHARE = 0.8
"""Default minimum score of an STS positive, as a share of the range: of 5, 4 is where STS begins to say "mostly
equivalent"."""


WhichNegatives = Literal["given", "mined", "none"]


def _with_text_keys(value: Any) -> Any:
    """Convert the keys of a dict to strings, since YAML reads some labels as numbers; return other values unchanged."""
    return {str(label): text for label, text in value.items()} if isinstance(value, dict) else value


Labels = Annotated[dict[str, str], BeforeValidator(_with_text_keys)]


class PairSettings(Settings):
    """Settings of how the rows of a data set become pairs.

    Attributes:
        split: split to read; None for the training split if there is one, else the first there is.
        anchor: name of the anchor's field in JSON lines.
        positive: name of the positive's field in JSON lines.
        labels: text of each label; takes precedence over labels.json.
        min_score: minimum score of an STS pair to be a positive; None for four fifths of the range of scores.
        texts_per_cluster: number of texts of a cluster that form one anchor.
        negatives: which hard negatives to use: `given` by the rows, `mined` with the job's `negatives`, or `none`. If
            None, those that the rows give, if any, else mined ones if the job mines.
        negative: name of the field in JSON lines that holds one negative or a list of them.
    """

    split: str | None = None
    anchor: str = "anchor"
    positive: str = "positive"
    labels: Labels = {}
    min_score: float | None = None
    texts_per_cluster: Count = 4
    negatives: WhichNegatives | None = None
    negative: str = "negative"


@dataclass(frozen=True)
class Pair:
    """Anchor with its positive.

    Attributes:
        anchor: anchor text.
        positive: positive text.
        place: row that the pair comes from, for messages.
        texts: texts to check for overlap with other data, if not anchor and positive: the texts of a cluster's anchor.
        negatives: hard negatives that the row supplies.
    """

    anchor: str
    positive: str
    place: str
    texts: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """Texts to check for overlap with other data: `texts`, or if it is empty, anchor and positive."""
        return self.texts or (self.anchor, self.positive)


@dataclass(frozen=True)
class Found:
    """Pairs of a data set, before duplicates and overlap are removed.

    Attributes:
        pairs: the pairs.
        split: split that they were made of.
        rows: number of rows read.
        dropped: rows left out, by reason.
    """

    pairs: list[Pair]
    split: str
    rows: int
    dropped: Warnings


class Rows:
    """Reader of a data set's split that counts its rows and notes which are left out.

    Args:
        data: the data set.
        split: the split.
        settings: the job's settings of the source.

    Attributes:
        count: number of rows read so far.
        dropped: rows left out, by reason.
    """

    def __init__(self, data: DataSet, split: str, settings: PairSettings) -> None:
        self.data, self.split, self.settings = data, split, settings
        self.count = 0
        self.dropped = Warnings()

    def read(self, *fields: str) -> Iterator[Record]:
        """Yield and count the rows of the split; raise `DataSetError` at a row that lacks one of the fields."""
        for record in self.data.rows(self.split):
            require(record, fields)
            self.count += 1
            yield record

    def texts(self, *fields: str) -> Iterator[Record]:
        """Yield the rows whose first field is not blank; record the others as left out.

        Raises:
            DataSetError: if a row lacks one of the fields.
        """
        for record in self.read(*fields):
            if blank(record[fields[0]]):
                self.dropped.add("blank text", record.place)
            else:
                yield record

    def paired(self, anchor: str, positive: str, keep: Callable[[Record], bool] = lambda record: True) -> list[Pair]:
        """Build a pair of each row that `keep` accepts, from two fields; record rows with a blank anchor as left out.

        Args:
            anchor: name of the anchor's field.
            positive: name of the positive's field.
            keep: predicate of rows to use; the default uses all.

        Raises:
            DataSetError: if an accepted row has no positive, or a row has no anchor field; the message names rows.
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
        """Return the distinct, non-blank hard negatives that a row supplies; none if the job wants mined ones or none.

        Raises:
            DataSetError: if the job wants supplied negatives, and the row has no such field.
        """
        field, which = self.settings.negative, self.settings.negatives
        if which in ("mined", "none") or (which is None and field not in record.fields):
            return ()
        require(record, (field,))
        return tuple(dict.fromkeys(texts_of(record, field)))


def find_pairs(data: DataSet, settings: PairSettings) -> Found:
    """Build the anchor–positive pairs of a data set's split, by its task.

    Raises:
        DataSetError: if there is no such split, a row lacks a field, or no pair is found.
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
    """Build a pair of query and document for each positive relevance judgement; record other judgements as left out."""
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
    """Build a pair of query and positive for each positive of each row; record queries without one as left out."""
    pairs = []
    for row in rows.texts("query", "positive"):
        positives = texts_of(row, "positive")
        if not positives:
            rows.dropped.add("query without a positive", row.place)
        negatives = rows.negatives_of(row) if rows.settings.negatives == "given" else ()
        pairs += [Pair(text_of(row, "query"), text, row.place, (), negatives) for text in positives]
    return pairs


def classification_pairs(rows: Rows) -> list[Pair]:
    """Build a pair of each text and the text of its label."""
    found = list(rows.texts("text", "label"))
    texts = label_texts(rows, found)
    return [Pair(text_of(row, "text"), texts[str(row["label"])], row.place, (row["text"],)) for row in found]


def clustering_pairs(rows: Rows) -> list[Pair]:
    """Build pairs of up to `texts_per_cluster` texts of a cluster, joined by newlines, and the text of its label.

    The last anchor of a cluster may be smaller.
    """
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
    """Return a clustering row as a list: itself, or a record per sentence if it holds lists, as in old mteb sets.

    Raises:
        DataSetError: if the lists have different lengths.
    """
    sentences, labels = record.get("sentences"), record.get("labels")
    if not isinstance(sentences, list) or not isinstance(labels, list):
        return [record]
    if len(sentences) != len(labels):
        raise DataSetError(f"{record.place}: {len(sentences)} sentences and {len(labels)} labels")
    return [Record(record.place, {"text": t, "label": x}) for t, x in zip(sentences, labels, strict=True)]


def same_meaning_pairs(rows: Rows) -> list[Pair]:
    """Build a pair of the two sentences of each row labelled 1; record rows labelled 0 as left out.

    Raises:
        DataSetError: if a label is neither 0 nor 1.
    """

    def positive(row: Record) -> bool:
        """Return whether a row is labelled 1; record it as left out if it is labelled 0."""
        require(row, ("label",))
        if str(row["label"]) not in ("0", "1"):
            raise DataSetError(f"{row.place}: 'label' must be 0 or 1, not {row['label']!r}")
        if str(row["label"]) == "0":
            rows.dropped.add("labelled 0", row.place)
        return str(row["label"]) == "1"

    return rows.paired("sentence1", "sentence2", positive)


def sts_pairs(rows: Rows) -> list[Pair]:
    """Build a pair of the two sentences of each row with a score of at least `min_score`; record others as left out.

    Without `min_score`, the threshold is `STS_SHARE` of the way from the lowest score to the highest.

    Raises:
        DataSetError: if a score is not a number, or all are equal and there is no `min_score`.
    """
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
        """Return whether a row's score reaches the threshold; record the row as left out if not."""
        if row["score"] < least:
            rows.dropped.add(f"score below {least:g}", row.place)
        return bool(row["score"] >= least)

    return rows.paired("sentence1", "sentence2", positive)


def summarization_pairs(rows: Rows) -> list[Pair]:
    """Build a pair of document and summary for each reference summary; record invalid and empty rows as left out."""
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
    """Build a pair of each row, from the fields that the job names as anchor and positive."""
    return rows.paired(rows.settings.anchor, rows.settings.positive)


def label_texts(rows: Rows, found: list[Record]) -> dict[str, str]:
    """Return the text of each label among the rows: from the job, else the data set, else the label itself.

    Raises:
        DataSetError: if a label is neither string nor number, or its text has nothing but digits and punctuation.
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
    """Yield the rows of a data set's file; raise `DataSetError` at a row that lacks one of the fields."""
    for record in data.rows(name):
        require(record, fields)
        yield record


def document_text(record: Record) -> str:
    """Return a document's title and text, joined by a space, as mteb passes it to an encoder."""
    return f"{record.get('title') or ''} {text_of(record, 'text')}".strip()


def require(record: Record, fields: tuple[str, ...]) -> None:
    """Raise `DataSetError` if a row lacks one of the fields."""
    for name in fields:
        if name not in record.fields:
            raise DataSetError(f"{record.place}: no field {name!r}; it has {', '.join(record.fields) or 'none'}")


def text_of(record: Record, name: str) -> str:
    """Return a row's field, which must be a string.

    Raises:
        DataSetError: if it is not a string.
    """
    if not isinstance(record[name], str):
        raise DataSetError(f"{record.place}: {name!r} must be a string, not {shortened(record[name])}")
    return str(record[name])


def texts_of(record: Record, name: str) -> list[str]:
    """Return the texts of a row's field, a string or a list of strings, without blank ones; an empty list for null.

    Raises:
        DataSetError: if the field holds anything else.
    """
    value = record[name]
    listed = [value] if isinstance(value, str) else value or []
    if not is_texts(listed):
        raise DataSetError(f"{record.place}: {name!r} must be texts, not {shortened(value)}")
    return [text for text in listed if not blank(text)]


def distinct_pairs(pairs: list[Pair]) -> list[Pair]:
    """Remove duplicate pairs, keeping the first of each in order, with the negatives of all its duplicates."""
    found: dict[tuple[str, str], Pair] = {}
    for pair in pairs:
        known = found.setdefault((pair.anchor, pair.positive), pair)
        if new := [text for text in pair.negatives if text not in known.negatives]:
            found[pair.anchor, pair.positive] = replace(known, negatives=(*known.negatives, *new))
    return list(found.values())


def blank(value: Any) -> bool:
    """Return whether a value is None or a string of spaces only."""
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
"""Function that makes the pairs of a data set, by its task."""
