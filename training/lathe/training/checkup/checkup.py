"""`check_up`: a checkup of a store of vectors, as findings and one sentence on its searches."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lathe.training.checkup.findings import Finding
from lathe.training.checkup.rows import check_rows
from lathe.training.checkup.searches import SearchCheck, check_searches, describe_searches, format_loss
from lathe.training.checkup.spaces import WORDS, StoreEncoder, encode_again, find_strangers
from lathe.training.checkup.store import Rows, Store
from lathe.training.measures import cut_in_two
from lathe.transforms.progress import Progress
from lathe.transforms.vectors import FloatArray

MAX_ROWS = 100_000
"""Maximum number of rows that are read."""
QUERIES = 200
"""Number of rows that are asked as queries if none are given."""
QUERY_TEXTS, MIN_QUERIES = 1000, 50
"""Number of texts that are tried to be cut in two, and minimum number of halves to ask in place of stored vectors."""


@dataclass(frozen=True)
class Checkup:
    """Outcome of a checkup.

    Attributes:
        store: name of the store.
        rows: number of its rows.
        checked: number of rows read.
        findings: what was found, what must be mended first.
        searches: recall of the searches and its losses; None for vectors alone, which have no index and no texts.
    """

    store: str
    rows: int
    checked: int
    findings: Sequence[Finding]
    searches: SearchCheck | None

    @property
    def must_mend(self) -> bool:
        """Whether something must be mended."""
        return any(finding.severity == "mend" for finding in self.findings)

    @property
    def sentence(self) -> str:
        """One sentence on the searches and their losses, or on the rows where no searches were asked."""
        if self.searches is None:
            count = sum(finding.severity == "mend" for finding in self.findings)
            return f"{count or 'Nothing'} of what was found must be mended." if count else "Nothing must be mended."
        losses = [
            f"{format_loss(loss)} {LOST[cause]}" for cause, loss in self.searches.losses.items() if loss.value >= 0.005
        ]
        lost = f": {', '.join(losses)}" if losses else ", and nothing is lost that was looked for"
        return f"Recall@10 is {format_loss(self.searches.recall)}{lost}."

    def to_json(self) -> dict[str, Any]:
        """Return the checkup as a JSON object."""
        return asdict(self) | {"sentence": self.sentence, "must_mend": self.must_mend}


LOST = {"graph": "is lost by the graph", "quantizer": "by the quantizer"} | {
    "other_encoder": "by rows of another encoder",
    "prompt": "by rows with another prompt",
    "truncated": "by rows of truncated texts",
    "changed_text": "by rows whose text changed",
}
"""Words for what takes recall, by cause."""
assert LOST.keys() > WORDS.keys()


def check_up(store: Store, encoder: StoreEncoder | None, queries: FloatArray | None, on_progress: Progress) -> Checkup:
    """Check a store's rows and searches.

    Args:
        store: the store.
        encoder: encoder that the rows should be of, or None if it is not known.
        queries: queries `(q, d)` to ask. None asks the first halves of stored texts if the encoder is known, else
            stored vectors.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        EncoderError: if a text cannot be encoded.
    """
    on_progress(0.0, "reading rows")
    rows = store.read(MAX_ROWS)
    on_progress(0.2, "checking rows")
    findings = list(check_rows(rows, store.metric))
    again = None
    if encoder is not None:
        again = encode_again(rows, encoder, lambda part, message: on_progress(0.4 + 0.3 * part, message))
    if again is not None:
        findings += again.describe(rows.total)
    elif (strangers := find_strangers(rows)) is not None:
        findings.append(strangers)

    searches = None
    if store.efforts or again is not None:
        on_progress(0.7, "asking queries")
        if queries is None:
            queries = _choose_queries(rows, encoder)
        searches = check_searches(store, queries, again)
        findings += describe_searches(searches, store)
    findings.sort(key=lambda finding: ("mend", "note", "fine").index(finding.severity))
    return Checkup(store.name, rows.total, len(rows.ids), findings, searches)


def _choose_queries(rows: Rows, encoder: StoreEncoder | None) -> FloatArray:
    """Return queries made of stored rows, up to `QUERIES`.

    They are the first halves of texts where the encoder is known, else stored vectors.
    """
    if encoder is not None and rows.texts is not None:
        halves = [cut[0] for text in rows.texts[:QUERY_TEXTS] if text and (cut := cut_in_two(text))]
        if len(halves) >= MIN_QUERIES:
            return encoder.ask(halves[:QUERIES])
    return rows.vectors[rows.is_valid][-QUERIES:]
