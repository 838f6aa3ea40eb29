"""`check_up`: a checkup of a store of vectors, as findings and a summary of its searches."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lathe.training.checkup.findings import Finding, format_recall
from lathe.training.checkup.rows import check_rows
from lathe.training.checkup.searches import SearchCheck, check_searches, describe_searches
from lathe.training.checkup.spaces import StoreEncoder, encode_again, find_strangers
from lathe.training.checkup.store import Rows, Store
from lathe.training.errors import EncoderError
from lathe.training.measures import blur_rows, cut_in_two
from lathe.transforms.progress import Progress
from lathe.transforms.vectors import FloatArray

MAX_ROWS = 100_000
"""Maximum number of rows that are read."""
QUERIES = 200
"""Number of rows that are asked as queries if none are given."""
MIN_LOSS = 0.005
"""Minimum loss of recall that the summary names."""
QUERY_TEXTS, MIN_QUERIES = 1000, 50
"""Number of texts that are tried to be cut in two, and minimum number of halves to ask in place of stored vectors."""


@dataclass(frozen=True)
class Checkup:
    """Outcome of a checkup.

    Attributes:
        store: name of the store.
        rows: number of its rows.
        checked: number of rows read.
        findings: what was found, what must be fixed first.
        searches: recall of the searches and its losses; None for vectors alone, which have no index and no texts.
    """

    store: str
    rows: int
    checked: int
    findings: Sequence[Finding]
    searches: SearchCheck | None

    @property
    def must_fix(self) -> bool:
        """Whether something must be fixed."""
        return any(finding.severity == "fix" for finding in self.findings)

    @property
    def summary(self) -> str:
        """Recall@10 of the searches and what loses it, or whether anything must be fixed if nothing was asked."""
        if self.searches is None:
            return f"{'Something' if self.must_fix else 'Nothing'} must be fixed. There is no approximate index to ask."
        losses = [
            f"{format_recall(loss)} by {LOST[cause]}"
            for cause, loss in self.searches.losses.items()
            if loss.value >= MIN_LOSS
        ]
        lost = f"It loses {', '.join(losses)}." if losses else "No loss was found."
        return f"Recall@10 is {format_recall(self.searches.recall)}. {lost}"

    def to_json(self) -> dict[str, Any]:
        """Return the checkup as a JSON object."""
        return asdict(self) | {"summary": self.summary, "must_fix": self.must_fix}


LOST = {
    "graph": "approximate search",
    "quantizer": "the quantizer",
    "other_encoder": "rows of another encoder",
    "prompt": "rows with another prompt",
    "truncated": "rows of truncated texts",
    "changed_text": "rows whose text changed",
}
"""What takes recall, by cause."""


def check_up(store: Store, encoder: StoreEncoder | None, queries: FloatArray | None, on_progress: Progress) -> Checkup:
    """Check a store's rows and searches, and return the findings. An empty store raises.

    Args:
        store: the store.
        encoder: encoder that the rows should be of, or None if it is not known.
        queries: queries `(q, d)` to ask. None asks the first halves of stored texts if the encoder is known, else
            stored vectors with noise.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        EmptyError: if the store has no vectors.
        EncoderError: if a text cannot be encoded, or queries or texts have vectors of another number of dimensions than
            the rows.
    """
    on_progress(0.0, "reading rows")
    rows = store.read(MAX_ROWS)
    d = rows.vectors.shape[1]
    if queries is not None and queries.shape[1] != d:
        raise EncoderError(f"the queries have {queries.shape[1]} dimensions, and the rows have {d}")
    on_progress(0.2, "checking rows")
    findings = list(check_rows(rows, store.metric))
    again = None
    if encoder is not None:
        again = encode_again(rows, encoder, lambda part, message: on_progress(0.4 + 0.3 * part, message))
    if again is not None:
        findings += again.describe(rows.total, store.cures.encode)
    else:
        findings += find_strangers(rows)
        if encoder is not None and rows.texts is not None:
            findings.append(Finding("space", "note", "No row read has a text where --texts names it."))

    searches = None
    if store.efforts or again is not None:
        on_progress(0.7, "asking queries")
        if queries is None:
            queries = _choose_queries(rows, encoder)
        if len(queries):
            searches = check_searches(store, queries, again)
            findings += describe_searches(searches, store)
    findings.sort(key=lambda finding: ("fix", "note", "fine").index(finding.severity))
    return Checkup(store.name, rows.total, len(rows.ids), findings, searches)


def _choose_queries(rows: Rows, encoder: StoreEncoder | None) -> FloatArray:
    """Return up to `QUERIES` queries: first halves of texts if the encoder is known, else stored vectors with noise."""
    if encoder is not None and rows.texts is not None:
        halves = [cut[0] for text in rows.texts[:QUERY_TEXTS] if text and (cut := cut_in_two(text))]
        if len(halves) >= MIN_QUERIES:
            return encoder.ask(halves[:QUERIES])
    return blur_rows(rows.vectors[rows.is_valid][-QUERIES:], np.random.default_rng(0))
