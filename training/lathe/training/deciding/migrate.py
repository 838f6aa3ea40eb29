"""The choices are measured on a sample of the rows, and the cheapest that no other beats is recommended.

stay                    queries and rows by the present encoder
map queries             the same, with queries mapped by an adapter that learns from judged searches
bridge                  queries by the new encoder, mapped to the present vectors of the rows
encode again, as small  queries and rows by the new encoder, reduced to the present dimensions if they are more
encode again            queries and rows by the new encoder
"""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.comparison import Array, Interval, choose_cheapest, compare, mean_interval
from lathe.training.deciding.adapt import TIMED_DOCUMENTS
from lathe.training.deciding.encoder_training import measure_seconds_per_document
from lathe.training.deciding.migrate_request import MIN_SAMPLE, MigrateRequest
from lathe.training.digests import digest
from lathe.training.encoder.opening import without_store
from lathe.training.encoder.text_encoder import Encoding, TextEncoder, encode_queries, with_document_prompt
from lathe.training.errors import FitError
from lathe.training.fitting.fit import build_provenance, certify_measured
from lathe.training.fitting.fit_state import FittedChain
from lathe.training.fitting.out_of_domain import OutOfDomainTexts, list_built_in_corpora
from lathe.training.fitting.pairs import (
    MIN_TEST_QUERIES,
    PairTexts,
    find_own_texts,
    list_own_text_notes,
    read_pairs,
)
from lathe.training.fitting.requests import CODES
from lathe.training.reporting.text import MISSING, align_columns, format_duration, format_half_width
from lathe.training.sources.row_sample import sample_rows
from lathe.training.sources.source import open_source
from lathe.transforms.base import QueryPairs, measure_relevance
from lathe.transforms.chain import Chain, build_steps, parse_steps
from lathe.transforms.errors import InputError
from lathe.transforms.learned.contrastive_alignment import MIN_PAIRS, make_alignment
from lathe.transforms.learned.query_adapter import MIN_QUERIES as MIN_ADAPTED
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.quality.metrics import normalized_rows
from lathe.transforms.vectors import FloatArray

STAY, ADAPT, BRIDGE, SMALL, AGAIN = "stay", "map queries", "bridge", "encode again, as small", "encode again"
"""Names of the choices, cheapest first."""

FOLDS = 3
"""Number of parts of the judged queries: each is measured by an adapter that learns from the others."""

NEAREST = 10
"""Number of nearest rows whose agreement is measured without judged queries."""

FLOAT_BYTES = 4
"""Bytes of a stored dimension."""

SMALLER = "pca:{dimensions}"
"""Steps that reduce vectors of the new encoder to the present dimensions."""

MAX_QUERIES = 1000
"""Maximum number of judged queries, whose relevant documents are encoded too."""

HELDOUT_SHARE = 5
"""Interval of the rows that are held out: every fifth one. Neither a bridge nor a chain is fitted on them."""

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
            the new encoder that are found from each query or held-out row, `(n,)`. Choices that could not be measured
            are missing.
        vector_bytes: bytes of a stored vector by choice.
        documents: number of rows that were searched.
        cost: cost of encoding again.
        notes: sentences on what was measured and left out.
        chains: fitted chain of the new encoder's vectors, by choice; only choices that take one.
        fitted: vectors of sampled rows by the new encoder, on which chains were fitted, `(n, d)`.
        heldout: vectors of other sampled rows by the new encoder, `(m, d)`.
        searches: judged queries and documents by the new encoder; None without judged queries.
        rows_digest: digest of the documents.
    """

    present: str
    new: str
    source: str
    judged: bool
    scores: dict[str, Array]
    vector_bytes: dict[str, int]
    documents: int
    cost: Cost
    notes: tuple[str, ...]
    chains: dict[str, Chain] = field(default_factory=dict, repr=False)
    fitted: FloatArray = field(default_factory=lambda: np.empty((0, 0), np.float32), repr=False)
    heldout: FloatArray = field(default_factory=lambda: np.empty((0, 0), np.float32), repr=False)
    searches: QueryPairs | None = field(default=None, repr=False)
    rows_digest: str = ""

    @property
    def recommended(self) -> str | None:
        """Name of the recommended choice; None without judged queries."""
        return list(self.scores)[choose_cheapest(list(self.scores.values()))] if self.judged else None

    @property
    def encodes_again(self) -> bool:
        """Whether the recommended choice encodes all rows again."""
        return self.recommended in (SMALL, AGAIN)

    @property
    def chain(self) -> Chain | None:
        """Fitted chain of the recommended choice; None if it takes none."""
        return self.chains.get(self.recommended or "")

    @property
    def chain_name(self) -> str:
        """Name for the chain of the recommended choice, such as "e5-base-48-bytes" or "e5-base-bridge"."""
        suffix = "bridge" if self.recommended == BRIDGE else f"{self.vector_bytes[self.recommended or STAY]}-bytes"
        return "-".join([*re.findall("[a-z0-9]+", self.new.lower()), suffix])

    def plan_command(self, request: MigrateRequest) -> tuple[str, dict[str, Any]] | None:
        """Return the command of Lathe that fits the map of queries of the recommended choice, and its options by field.

        The result is None if the choice takes no map.

        Args:
            request: the request, whose rows and pairs are in files.
        """
        new: dict[str, Any] = {"source": request.source.location, "encoder": request.to}
        present = request.encoder or self.present
        if self.recommended == ADAPT:
            return "adapt", new | {"encoder": present, "pairs": str(request.pairs), "name": "adapted"}
        if self.recommended == BRIDGE:
            steps = {"steps": "contrastive_alignment", "target_encoder": present}
            return "fit", new | {"name": self.chain_name} | steps
        return None

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
        if self.recommended == ADAPT:
            return (
                f"Stay, and map queries: an adapter of the judged searches changes nDCG@10 by "
                f"{_format(self.compare(ADAPT))} {queries}, and no row is encoded again. {self.new} changes it by "
                f"{_format(again)}."
            )
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
        small = self.recommended == SMALL
        size = f", in {self.vector_bytes[SMALL]:,} bytes a vector as now," if small else ""
        return (
            f"Encode again: {self.new}{size} changes nDCG@10 by {_format(self.compare(SMALL if small else AGAIN))} "
            f"{queries}; {self.cost.describe()}.{bridge}"
        )

    def format(self) -> str:
        """Return the decision as text: its sentences, a table of the choices, and notes."""
        measure = "nDCG@10" if self.judged else f"% of the ten nearest by {self.new}"
        rows = [["choice", measure, "against stay", "bytes", "encoded again"]]
        for choice, scores in self.scores.items():
            label = ("* " if choice == self.recommended else "  ") + choice
            difference = MISSING if choice == STAY else _format(self.compare(choice))
            encoded = f"{self.cost.rows:,} rows" if choice in (SMALL, AGAIN) else "no rows"
            rows.append([label, f"{scores.mean():.1f}", difference, f"{self.vector_bytes[choice]:,}", encoded])
        return "\n\n".join([self.write_sentence(), align_columns(rows), *self.notes])

    def to_json(self) -> dict[str, Any]:
        """Convert the decision to a JSON-compatible dict.

        `difference` is the difference to staying, in points with its 95 % interval.
        """
        choices = [
            {
                "name": choice,
                "mean": float(scores.mean()),
                "difference": asdict(self.compare(choice)),
                "vector_bytes": self.vector_bytes[choice],
            }
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
    measured. Whatever is fitted learns from sampled rows, or judged queries, that it is not measured by; the bridge is
    the map that a reindexing fits.

    Args:
        request: what to compare.
        present: encoder of the stored vectors.
        new: the other encoder.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        FitError: for one encoder twice, a source of vectors, too few rows or queries, or malformed pairs.
        SourceError: if a file cannot be read.
        EncoderError: if an encoder fails on a text.
        TransformError: if there are too few rows to fit codes of the requested bytes on.
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

    queries, old_queries, new_queries, fitted = _encode_searches(
        request, judged, (present, old), (new, encoding.vectors), others
    )
    own = find_own_texts(queries, documents)
    positions = {text: position for position, text in enumerate(documents)}
    answers = (
        _find_nearest(new_queries, encoding.vectors, own)
        if judged is None
        else judged.list_relevant(positions.__getitem__)
    )
    pairs = QueryPairs(old_queries, old, answers, own)
    on_progress(0.9, f"fitting a bridge on {len(fitted):,} rows")
    choices, chains, notes = _build_choices(request, pairs, new_queries, encoding.vectors, fitted)
    if judged is not None:
        notes += [*judged.notes, *list_own_text_notes([own])]
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
        present.name,
        new.name,
        source.name,
        judged is not None,
        # Agreement with the new encoder is recall of its ten nearest rows.
        {name: 100 * measure_relevance(searched)[0 if judged else 1] for name, searched in choices.items()},
        {name: request.bytes or FLOAT_BYTES * searched.documents.shape[1] for name, searched in choices.items()},
        len(documents),
        cost,
        tuple(notes),
        chains,
        encoding.vectors[fitted],
        encoding.vectors[: len(others) : HELDOUT_SHARE],
        None if judged is None else replace(pairs, queries=new_queries, documents=encoding.vectors),
        digest(documents),
    )


def certify_recommended(
    migration: Migration,
    request: MigrateRequest,
    encoder: TextEncoder,
    folder: Path,
    command: str | None,
    on_progress: Progress,
) -> FittedChain | None:
    """Certify the chain that was measured in the recommended choice, on sampled rows that it was not fitted on.

    Args:
        migration: the decision.
        request: the request.
        encoder: the new encoder.
        folder: folder of cached out-of-domain texts.
        command: the user's command, for the provenance.
        on_progress: called with progress in [0, 1] and a message.

    Returns:
        The chain with its certificate, in which `relevance` has nDCG@10 of the judged queries; None if the recommended
        choice takes no chain.
    """
    if migration.chain is None:
        return None
    encoder = with_document_prompt(encoder)  # as the documents were encoded
    rows = len(migration.fitted) + len(migration.heldout)
    provenance = build_provenance(
        migration.source,
        rows=rows,
        rows_digest=migration.rows_digest,
        seed=request.seed,
        command=command,
    )
    return certify_measured(
        migration.chain,
        migration.fitted,
        migration.heldout,
        encoder,
        provenance,
        "a migration takes the default codes, as it measured them",
        out_of_domain=OutOfDomainTexts(list_built_in_corpora(request.source.path), folder).encode(encoder, on_progress),
        warnings=[note.rstrip(".") for note in migration.notes],
        pairs=migration.searches,
    )


def _encode_searches(
    request: MigrateRequest,
    judged: PairTexts | None,
    present: tuple[TextEncoder, FloatArray],
    new: tuple[TextEncoder, FloatArray],
    others: Sequence[str],
) -> tuple[list[str], FloatArray, FloatArray, NDArray[np.int64]]:
    """Return the queries by which choices are compared, their vectors `(n, d)` by both encoders, and rows to fit on.

    The queries are the judged queries, else the request's, else the rows that are held out of every fit.

    Args:
        request: the request.
        judged: pairs of the judged queries; None for none.
        present: encoder of the stored vectors, and its vectors of the documents.
        new: the other encoder, and its vectors of the documents.
        others: documents that are relevant to no query, which come first.

    Raises:
        FitError: if the request's queries are vectors.
    """
    rows = np.arange(len(others))
    held_out, fitted = rows[::HELDOUT_SHARE], rows[rows % HELDOUT_SHARE > 0]
    if judged is not None:
        queries = list(judged.documents)
    elif request.queries is not None:
        searches = sample_rows(open_source(request.queries.location), MAX_QUERIES, request.seed)
        if searches.vectors is not None:
            raise FitError("the queries are vectors, and both encoders encode texts: name a source of texts")
        queries = searches.texts
    else:
        return [others[row] for row in held_out], present[1][held_out], new[1][held_out], fitted
    return queries, _encode_queries(present[0], queries), _encode_queries(new[0], queries), fitted


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
    def show(done: int) -> None:
        on_progress(done / len(documents), f"{encoder.name}: {done:,} of {len(documents):,} rows encoded")

    encoding = with_document_prompt(encoder).encode(documents, on_batch=show)
    return replace(encoding, vectors=normalized_rows(encoding.vectors, np.float32).numpy())


def _encode_queries(encoder: TextEncoder, queries: Sequence[str]) -> FloatArray:
    return normalized_rows(encode_queries(encoder, queries), np.float32).numpy()


def _find_nearest(queries: FloatArray, documents: FloatArray, own: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of query and document, for each query and its ten nearest documents, `(10 n, 2)`.

    Documents that are the query's own text are left out.

    Args:
        queries: unit vectors `(n, d)`.
        documents: unit vectors `(m, d)`.
        own: row of a query and row of the document that is its own text, `(e, 2)`.
    """
    similarities = queries @ documents.T
    similarities[own[:, 0], own[:, 1]] = -np.inf
    nearest = np.argpartition(-similarities, NEAREST, axis=1)[:, :NEAREST]
    return np.stack([np.repeat(np.arange(len(queries)), NEAREST), nearest.ravel()], axis=1)


def _build_choices(
    request: MigrateRequest, present: QueryPairs, queries: FloatArray, documents: FloatArray, fitted: NDArray[np.int64]
) -> tuple[dict[str, QueryPairs], dict[str, Chain], list[str]]:
    """Return queries and documents as they are compared in each choice, fitted chains by choice, and notes.

    Choices are ordered by their cost, the cheapest first. The notes say which are missing, and why.

    Args:
        request: the request.
        present: queries and documents by the present encoder.
        queries: the same queries by the new encoder, `(n, d)`.
        documents: the same documents by the new encoder, `(m, d)`.
        fitted: rows of documents to fit on.
    """
    old, new = present.documents[fitted], documents[fitted]
    present_codes, new_codes = (_fit_codes(rows, request.bytes) for rows in (old, new))
    stored = partial(_store, chain=present_codes)
    choices, chains, notes = {STAY: stored(present)}, dict[str, Chain](), list[str]()
    moved = replace(present, queries=queries, documents=documents)
    try:
        if request.pairs is not None:
            choices[ADAPT] = stored(replace(present, queries=_adapt_queries(present, request.seed)))
    except InputError as error:
        notes.append(f"Mapping queries was not tried: {error}.")
    try:
        if len(new) < MIN_PAIRS:
            raise InputError(f"{len(new)} rows are left to fit it on, and {MIN_PAIRS} are needed")
        bridge = Chain([make_alignment(new.shape[1], old.shape[1])]).fit(new, targets=old)
        choices[BRIDGE] = stored(replace(present, queries=bridge.transform(queries)))
        notes.append(f"The bridge was fitted on {len(new):,} rows.")
    except InputError as error:
        notes.append(f"There is no bridge: {error}.")
    try:
        if request.bytes is None and new.shape[1] > old.shape[1]:
            chains[SMALL] = Chain(parse_steps(SMALLER.format(dimensions=old.shape[1]))).fit(new)
            choices[SMALL] = _store(moved, chains[SMALL])
    except InputError as error:
        notes.append(f"As many bytes as now were not tried: {error}.")
    if request.pairs is not None:  # the agreement of the new encoder with itself says nothing
        choices[AGAIN] = _store(moved, new_codes)
        if new_codes is not None:
            chains[AGAIN] = new_codes
    return choices, chains, notes


def _fit_codes(rows: FloatArray, size: int | None) -> Chain | None:
    return None if size is None else Chain(build_steps([{"kind": CODES, "bytes": size}])).fit(rows)


def _store(pairs: QueryPairs, chain: Chain | None) -> QueryPairs:
    """Return queries and documents as a chain maps and stores them; without a chain, unchanged."""
    return pairs if chain is None else pairs.map(chain.transform_queries, chain.floats)


def _adapt_queries(pairs: QueryPairs, seed: int) -> FloatArray:
    """Return the queries `(n, d)` as adapters map them, each by one of `FOLDS` that did not learn from it.

    Raises:
        InputError: if there are too few queries to learn from.
    """
    needed = math.ceil(MIN_ADAPTED * FOLDS / (FOLDS - 1))
    if len(pairs) < needed:
        raise InputError(f"there are {len(pairs)} judged queries, and {needed} are needed")
    order = np.random.default_rng(seed).permutation(len(pairs))
    mapped = np.empty_like(pairs.queries)
    for fold in range(FOLDS):
        part = order[fold::FOLDS]
        adapter = Chain(parse_steps("query_adapter"))
        adapter.fit(pairs.documents, pairs=pairs.select(np.sort(np.setdiff1d(order, part))))
        mapped[part] = adapter.transform_queries(pairs.queries[part])
    return mapped


def _estimate_cost(
    request: MigrateRequest, encoder: TextEncoder, texts: Sequence[str], tokens: Sequence[int], rows: int
) -> Cost:
    upstream = encoder.spec.upstream
    seconds = None
    if upstream is None:
        # Encoded without the store: vectors that are stored already would take no time.
        timed = texts[:TIMED_DOCUMENTS]
        seconds = rows * measure_seconds_per_document(without_store(encoder), timed)
    price = request.price if request.price is not None or upstream is None else upstream.price
    return Cost(rows, round(rows * float(np.mean(tokens))), seconds, price)


def _format(estimate: Interval, spec: str = "+.1f") -> str:
    return format_half_width(estimate, spec, " ± ")
