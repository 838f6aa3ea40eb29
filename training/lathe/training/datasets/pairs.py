"""Anchor–positive pairs for training, and how they are read from the rows of a split."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from string import digits, punctuation, whitespace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from lathe.training.datasets.records import (
    MAX_NAMED,
    Record,
    Warnings,
    format_places,
    is_blank,
    is_label,
    shorten_value,
)
from lathe.training.errors import DataSetError
from lathe.training.settings import Count, StrictSettings

WhichNegatives = Literal["given", "mined", "none"]

Judgement = tuple[str, str, str, int]
"""Relevance judgement: place in the file (for messages), query id, document id, grade."""


def _convert_keys_to_text(value: Any) -> Any:
    """Convert the keys of a dict to strings, since YAML parses some labels as numbers. Other values are unchanged."""
    return {str(label): text for label, text in value.items()} if isinstance(value, dict) else value


Labels = Annotated[dict[str, str], BeforeValidator(_convert_keys_to_text)]


class PairSettings(StrictSettings):
    """Settings of how the rows of a data set become pairs.

    Attributes:
        split: split to read; None for the training split if there is one, else the first split.
        anchor: name of the anchor's field in JSON lines.
        positive: name of the positive's field in JSON lines.
        labels: text of each label; takes precedence over labels.json.
        min_score: minimum score of an STS pair to be a positive; None for four fifths of the range of scores.
        texts_per_cluster: number of texts of a cluster that form one anchor.
        negatives: which hard negatives to use: `given` by the rows, `mined` with the job's `negatives`, or `none`. If
            None, negatives in the rows are used, or if there are none, mined negatives if the job mines.
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
    """Training pair of an anchor and a positive text, with its hard negatives.

    Attributes:
        anchor: anchor text.
        positive: positive text.
        place: row that the pair comes from, for messages.
        texts: texts to check for overlap with other data; empty for anchor and positive. For clusters, the texts that
            form the anchor.
        negatives: hard negatives in the row.
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


class RowReader(ABC):
    """Base class of data sets that reads rows by split, relevance judgements, and texts of the labels.

    Attributes:
        name: name in tables and messages.
    """

    name: str

    @abstractmethod
    def read_rows(self, name: str) -> Iterator[Record]:
        """Yield the rows of a split, or of the files `corpus` or `queries`, as records."""

    def read_judgements(self, split: str) -> list[Judgement]:
        """Return the relevance judgements of a split. The list is empty unless the task is retrieval."""
        return []

    def read_labels(self) -> dict[str, str]:
        """Return the text of each label. The dict is empty if the labels have no texts."""
        return {}


class PairRows:
    """Reader of the rows of one split that counts the rows and records which are left out, and why.

    Args:
        data: the data set.
        split: the split.
        settings: how rows become pairs.

    Attributes:
        count: number of rows read so far.
        dropped: rows left out, by reason.
    """

    def __init__(self, data: RowReader, split: str, settings: PairSettings) -> None:
        self.data, self.split, self.settings = data, split, settings
        self.count = 0
        self.dropped = Warnings()

    def read(self, *fields: str) -> Iterator[Record]:
        """Yield the rows of the split, and count them in `count`. A row that lacks one of the fields raises.

        Raises:
            DataSetError: at a row that lacks one of the fields.
        """
        for record in self.data.read_rows(self.split):
            record.require(*fields)
            self.count += 1
            yield record

    def read_nonblank(self, *fields: str) -> Iterator[Record]:
        """Yield the rows of the split whose first given field is not blank, and record the other rows as left out.

        All rows are counted.

        Raises:
            DataSetError: if a row lacks one of the fields.
        """
        for record in self.read(*fields):
            if is_blank(record[fields[0]]):
                self.dropped.add("blank text", record.place)
            else:
                yield record

    def build_field_pairs(
        self, anchor: str, positive: str, is_positive: Callable[[Record], bool] = lambda record: True
    ) -> list[Pair]:
        """Build a training pair, with hard negatives, from two fields of each accepted row. A missing positive raises.

        All rows are counted. Accepted rows with a blank anchor are recorded as left out.

        Args:
            anchor: name of the anchor's field.
            positive: name of the positive's field.
            is_positive: predicate of rows to use; the default uses all.

        Raises:
            DataSetError: if an accepted row has no positive, or a row has no anchor field; the message names rows.
        """
        pairs, missing = [], []
        for record in self.read(anchor):
            if not is_positive(record):
                continue

            if is_blank(record.get(positive)):
                missing.append(record.place)
            elif is_blank(record[anchor]):
                self.dropped.add("blank text", record.place)
            else:
                negatives = self.list_negatives(record)
                pairs.append(Pair(record.text(anchor), record.text(positive), record.place, (), negatives))

        if missing:
            raise DataSetError(f"no {positive!r} at {format_places(missing)}: every pair needs one")

        return pairs

    def list_negatives(self, record: Record) -> tuple[str, ...]:
        """Return the distinct, non-blank hard negatives of a row, () if mined or none. A missing given field raises.

        The result is also empty if `negatives` of the settings is None and the row lacks the field.

        Raises:
            DataSetError: if `negatives` is `given` and the row lacks the field, or the field does not hold texts.
        """
        field, which = self.settings.negative, self.settings.negatives
        if which in ("mined", "none") or (which is None and field not in record.fields):
            return ()
        record.require(field)
        return tuple(dict.fromkeys(record.texts(field)))

    def find_label_texts(self, rows: list[Record]) -> dict[str, str]:
        """Find each label's text in the settings, else the data set, else the label. Only digits and punctuation raise.

        Raises:
            DataSetError: if a label is neither string nor number, or its text consists of digits and punctuation only.
        """
        for row in rows:
            if not is_label(row["label"]) or isinstance(row["label"], bool):
                raise DataSetError(
                    f"{row.place}: 'label' must be a string or a number, not {shorten_value(row['label'])}"
                )

        # Texts in the job take precedence over texts of the data set.
        known: Mapping[str, str] = self.data.read_labels() | self.settings.labels
        texts = {label: known.get(label, label) for label in dict.fromkeys(str(row["label"]) for row in rows)}
        # A label such as "3" does not tell an encoder anything about the class.
        meaningless = [label for label, text in texts.items() if not text.strip(digits + punctuation + whitespace)]
        if meaningless:
            named = ", ".join(repr(label) for label in meaningless[:MAX_NAMED])
            raise DataSetError(
                f"{self.data.name} has labels without a text ({named}), which is needed as the positive: "
                "add a labels.json next to the rows, or labels to the job"
            )

        return texts


def merge_duplicate_pairs(pairs: list[Pair]) -> list[Pair]:
    """Merge pairs with the same anchor and positive, and combine the negatives, in order of first occurrence."""
    # Duplicates can differ only in their negatives, which are merged.
    distinct: dict[tuple[str, str], Pair] = {}
    for pair in pairs:
        known = distinct.setdefault((pair.anchor, pair.positive), pair)
        if new := [text for text in pair.negatives if text not in known.negatives]:
            distinct[pair.anchor, pair.positive] = replace(known, negatives=(*known.negatives, *new))
    return list(distinct.values())
