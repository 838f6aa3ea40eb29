"""Three choices are measured on a sample of the rows, and the cheapest that no other beats is recommended.

stay          queries and rows by the present encoder
bridge        queries by the new encoder, mapped to the present vectors of the rows
encode again  queries and rows by the new encoder
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from lathe.training.adaptation.ladder import TIMED_DOCUMENTS
from lathe.training.adaptation.training import measure_seconds_per_document
from lathe.training.comparison import Array, Interval, choose_cheapest, compare, mean_interval
from lathe.training.encoder.opening import without_store
from lathe.training.encoder.text_encoder import Encoding, TextEncoder, encode_queries, with_document_prompt
from lathe.training.errors import FitError
from lathe.training.fitting.pairs import (
    MIN_TEST_QUERIES,
    PairTexts,
    find_own_texts,
    list_own_text_notes,
    read_pairs,
)
from lathe.training.migration.request import MIN_SAMPLE, MigrateRequest
from lathe.training.reporting.text import MISSING, align_columns, format_duration, format_half_width
from lathe.training.sources.row_sample import sample_rows
from lathe.training.sources.source import open_source
from lathe.transforms.base import QueryPairs, measure_relevance
from lathe.transforms.chain import Chain
from lathe.transforms.errors import TransformError
from lathe.transforms.learned.contrastive_alignment import MIN_PAIRS, make_alignment
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.quality.metrics import normalized_rows, search_recall_per_row
from lathe.transforms.vectors import FloatArray

STAY, BRIDGE, AGAIN = "stay", "bridge", "encode again"
"""Names of the choices, cheapest first."""

MAX_QUERIES = 1000
"""Maximum number of judged queries, whose relevant documents are encoded too."""

HELDOUT_SHARE = 5
"""Interval of the rows that measure agreement: every fifth one, which the bridge is not fitted on."""

MILLION = 1_000_000
"""Number of tokens that a price is for."""


@dataclass(frozen=True)
class Cost:
    """Cost of encoding all rows again, extrapolated from the sample.

    Attributes:
        rows: number of rows that are not blank.
        tokens: number of tokens, as the new encoder counts them.
        seconds: seconds that the encoder takes on this machine; None for an embeddings API.
        price: price of a million tokens; None if unknown.
    """

    rows: int
    tokens: int
    seconds: float | None
    price: float | None

    @property
    def money(self) -> float | None:
        """Price of all tokens; None if unknown."""
        return None if self.price is None else self.tokens * self.price / MILLION

    def describe(self) -> str:
        """Return rows, time, tokens and money as a clause."""
        tokens = f"{self.tokens / MILLION:,.3g} M tokens"
        if self.money is not None:
            tokens += f", {self.money:,.2f} at {self.price:g} a million"
        if self.seconds is None:
            return f"{self.rows:,} rows are {tokens}"
        rate = self.rows / max(self.seconds, 1e-9)
        return f"{self.rows:,} rows take {format_duration(self.seconds)} here at {rate:,.0f} rows a second ({tokens})"


@dataclass(frozen=True)
class Migration:
    """Measurements of the choices, and the decision by them.

    Attributes:
        present, new: names of the two encoders.
        source: name of the source.
        judged: whether judged queries were searched. If not, agreement was measured.
        scores: by choice, cheapest first, points of nDCG@10 of each query, or the share in % of the ten nearest rows by
            the new encoder that are found from each held-out row, `(n,)`. Without a bridge, `bridge` is missing.
        documents: number of rows that were searched.
        cost: cost of encoding again.
        problem: why there is no bridge; None if there is one.
        notes: sentences on what was left out.
    """

    present: str
    new: str
    source: str
    judged: bool
    scores: dict[str, Array]
    documents: int
    cost: Cost
    problem: str | None
    notes: tuple[str, ...]

    @property
    def recommended(self) -> str | None:
        """Name of the recommended choice; None without judged queries."""
        return list(self.scores)[choose_cheapest(list(self.scores.values()))] if self.judged else None

    def compare(self, choice: str, other: str = STAY) -> Interval:
        """Return the mean difference of two choices with its interval, paired by query."""
        return compare(self.scores[choice], self.scores[other])

    def write_sentence(self) -> str:
        """Return the decision as sentences: what to do, what it gains, and what it costs."""
        if not self.judged:
            agreement = {choice: _format(mean_interval(scores), ".1f") for choice, scores in self.scores.items()}
            bridge = f", and a bridge finds {agreement[BRIDGE]} %" if BRIDGE in agreement else ""
            return (
                f"Undecided: {self.present} finds {agreement[STAY]} % of the ten nearest rows by {self.new}{bridge}. "
                f"That says how much results would change, and nothing about which are better: give judged queries "
                f"(--pairs). To encode again, {self.cost.describe()}."
            )

        queries = f"points on {len(self.scores[STAY]):,} judged queries"
        again = self.compare(AGAIN)
        if self.recommended == STAY:
            verdict = "which is a loss" if again.sign < 0 else "which is no gain beyond chance"
            # A search among few rows is easy for both encoders, so a sample can hide a gain among all rows.
            among = f" among {self.documents:,} of {self.cost.rows:,} rows" if self.documents < self.cost.rows else ""
            return f"Stay: {self.new} changes nDCG@10 by {_format(again)} {queries}, {verdict}{among}."
        if self.recommended == BRIDGE:
            return (
                f"Bridge: queries by {self.new}, mapped to the present vectors, change nDCG@10 by "
                f"{_format(self.compare(BRIDGE))} {queries}, and no row is encoded again. To encode again changes it "
                f"by {_format(self.compare(AGAIN, BRIDGE))} more, and {self.cost.describe()}."
            )
        bridge = f" A bridge changes it by {_format(self.compare(BRIDGE))} instead." if BRIDGE in self.scores else ""
        return (
            f"Encode again: {self.new} changes nDCG@10 by {_format(again)} {queries}; {self.cost.describe()}.{bridge}"
        )

    def format(self) -> str:
        """Return the decision as text: its sentences, a table of the choices, and notes."""
        measure = "nDCG@10" if self.judged else f"% of the ten nearest by {self.new}"
        rows = [["choice", measure, "against stay", "encodes"]]
        for choice, scores in self.scores.items():
            label = ("* " if choice == self.recommended else "  ") + choice
            difference = MISSING if choice == STAY else _format(self.compare(choice))
            encoded = f"{self.cost.rows:,} rows" if choice == AGAIN else "queries"
            rows.append([label, f"{scores.mean():.1f}", difference, encoded])
        return "\n\n".join([self.write_sentence(), align_columns(rows), *self.notes])

    def to_json(self) -> dict[str, Any]:
        """Convert the decision to a dict that can be serialized as JSON. `difference` is to staying, in points with its
        95 % interval.
        """
        choices = [
            {"name": choice, "mean": float(scores.mean()), "difference": asdict(self.compare(choice))}
            for choice, scores in self.scores.items()
        ]
        return {
            "sentence": self.write_sentence(),
            "notes": list(self.notes),
            "recommended": self.recommended,
            "from": self.present,
            "to": self.new,
            "source": self.source,
            "measure": "ndcg_at_10" if self.judged else "agreement_at_10",
            "measured": len(self.scores[STAY]),
            "documents": self.documents,
            "choices": choices,
            "cost": asdict(self.cost) | {"money": self.cost.money},
        }


def decide_migration(
    request: MigrateRequest, present: TextEncoder, new: TextEncoder, on_progress: Progress
) -> Migration:
    """Measure on a sample of the rows what another encoder gains, and return the measurements with the decision.

    With judged queries, the choices are compared by nDCG@10. Without, only the agreement of the nearest rows is
    measured. The bridge is the map that a reindexing fits, here on sampled rows that it is not measured by.

    Args:
        request: what to compare.
        present: encoder of the stored vectors.
        new: the other encoder.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        FitError: for one encoder twice, a source of vectors, too few rows or queries, or malformed pairs.
        SourceError: if a file cannot be read.
        EncoderError: if an encoder fails on a text.
    """
    if present.fingerprint == new.fingerprint:
        raise FitError(f"{new.name} and {present.name} give the same vectors: name another encoder")
    judged = None if request.pairs is None else _sample_queries(read_pairs(request.pairs), request.seed)
    on_progress(0.0, "sampling rows")
    source = open_source(request.source.location)
    sampled = sample_rows(source, request.sample_rows, request.seed)
    if sampled.vectors is not None:
        raise FitError("the source holds vectors, and another encoder encodes texts: name a source of texts")
    if judged is None and len(sampled) < MIN_SAMPLE:
        raise FitError(f"the source has {len(sampled)} different rows; without judged queries, {MIN_SAMPLE} are needed")

    relevant = {} if judged is None else dict.fromkeys(text for _, text in judged.pairs)
    others = [text for text in sampled.texts if text not in relevant]
    documents = [*others, *relevant]
    old = _encode(present, documents, part_of(on_progress, 0.0, 0.5)).vectors
    encoding = _encode(new, documents, part_of(on_progress, 0.5, 0.9))

    # The bridge is not measured by what it is fitted on: judged documents, or every fifth row, stay out of its fit.
    rows = np.arange(len(others))
    fitted = rows if judged else rows[rows % HELDOUT_SHARE > 0]
    on_progress(0.9, f"fitting a bridge on {len(fitted):,} rows")
    bridge, problem = _fit_bridge(encoding.vectors[fitted], old[fitted])
    notes = [f"There is no bridge: {problem}." if problem else f"The bridge was fitted on {len(fitted):,} rows."]
    if judged is None:
        held_out = rows[::HELDOUT_SHARE]
        scores = _measure_agreement(encoding.vectors[held_out], old[held_out], bridge)
    else:
        queries = list(judged.documents)
        positions = {text: position for position, text in enumerate(documents)}
        own = find_own_texts(queries, documents)
        notes += [*judged.notes, *list_own_text_notes([own])]
        pairs = QueryPairs(encode_queries(present, queries), old, judged.list_relevant(positions.__getitem__), own)
        scores = _measure_ndcg(pairs, encode_queries(new, queries), encoding.vectors, bridge)
    if sampled.rows > len(documents):
        notes.append(
            f"Measured among {len(documents):,} of {sampled.rows:,} rows. Among all, scores are lower, and differences "
            "can be larger: more sample rows show it."
        )

    tokens = dict(zip(documents, encoding.tokens.tolist(), strict=True))
    cost = _estimate_cost(
        request, new, sampled.texts, [tokens[text] for text in sampled.texts], sampled.rows - sampled.blank
    )
    return Migration(
        present.name, new.name, source.name, judged is not None, scores, len(documents), cost, problem, tuple(notes)
    )


def _sample_queries(judged: PairTexts, seed: int) -> PairTexts:
    """Return the pairs of at most `MAX_QUERIES` random queries. Raise `FitError` for fewer than `MIN_TEST_QUERIES`."""
    queries = list(judged.documents)
    if len(queries) < MIN_TEST_QUERIES:
        raise FitError(f"the pairs have {len(queries)} different queries; at least {MIN_TEST_QUERIES} are needed")
    if len(queries) <= MAX_QUERIES:
        return judged
    chosen = np.random.default_rng(seed).permutation(len(queries))[:MAX_QUERIES]
    return replace(judged, documents={queries[i]: judged.documents[queries[i]] for i in np.sort(chosen)})


def _encode(encoder: TextEncoder, documents: Sequence[str], on_progress: Progress) -> Encoding:
    """Encode documents with the encoder's prompt for documents, and return unit vectors."""

    def show(done: int) -> None:
        on_progress(done / len(documents), f"{encoder.name}: {done:,} of {len(documents):,} rows encoded")

    encoding = with_document_prompt(encoder).encode(documents, on_batch=show)
    return replace(encoding, vectors=normalized_rows(encoding.vectors, np.float32).numpy())


def _fit_bridge(new: FloatArray, old: FloatArray) -> tuple[Callable[[FloatArray], FloatArray] | None, str | None]:
    """Fit the map from vectors of the new encoder `(n, d)` to the present ones `(n, k)` that a reindexing fits. Return
    `(map, None)`, or `(None, the reason why there is none)`.
    """
    if len(new) < MIN_PAIRS:
        return None, f"{len(new)} rows are left to fit it on, and {MIN_PAIRS} are needed"
    try:
        return Chain([make_alignment(new.shape[1], old.shape[1])]).fit(new, targets=old).transform, None
    except TransformError as error:
        return None, str(error)


def _measure_ndcg(
    present: QueryPairs, queries: FloatArray, documents: FloatArray, bridge: Callable[[FloatArray], FloatArray] | None
) -> dict[str, Array]:
    """Return nDCG@10 of each query in points by choice, cheapest first.

    Args:
        present: judged queries and documents by the present encoder.
        queries: the same queries by the new encoder.
        documents: the same documents by the new encoder.
        bridge: map to the vectors of the present encoder; None if there is none.
    """
    choices = {STAY: present}
    if bridge is not None:
        choices[BRIDGE] = replace(present, queries=bridge(queries))
    choices[AGAIN] = replace(present, queries=queries, documents=documents)
    return {choice: 100 * measure_relevance(pairs)[0] for choice, pairs in choices.items()}


def _measure_agreement(
    new: FloatArray, old: FloatArray, bridge: Callable[[FloatArray], FloatArray] | None
) -> dict[str, Array]:
    """Return, by choice, the share in % of each row's ten nearest rows by the new encoder that are found."""
    scores = {STAY: search_recall_per_row(new, old, old)}
    if bridge is not None:
        scores[BRIDGE] = search_recall_per_row(new, bridge(new), old)
    return {choice: 100 * shares for choice, shares in scores.items()}


def _estimate_cost(
    request: MigrateRequest, encoder: TextEncoder, texts: Sequence[str], tokens: Sequence[int], rows: int
) -> Cost:
    """Extrapolate the cost of sampled texts with their numbers of tokens to all rows, and return it."""
    upstream = encoder.spec.upstream
    seconds = None
    if upstream is None:
        # Encoded without the store: vectors that are stored already would take no time.
        timed = texts[:TIMED_DOCUMENTS]
        seconds = rows * measure_seconds_per_document(without_store(encoder), timed)
    price = request.price if request.price is not None or upstream is None else upstream.price
    return Cost(rows, round(rows * float(np.mean(tokens))), seconds, price)


def _format(estimate: Interval, spec: str = "+.1f") -> str:
    """Return an estimate with half the width of its interval, such as "+1.2 ± 0.4"."""
    return format_half_width(estimate, spec, " ± ")
