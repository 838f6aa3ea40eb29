"""Migration to another encoder: choices are measured on a sample, and the cheapest unbeaten choice is recommended.

stay                    queries and rows by the present encoder
map queries             queries and rows by the present encoder, queries mapped by an adapter fitted on judged searches
bridge                  queries by the new encoder, mapped to the present vectors of the rows
encode again, as small  queries and rows by the new encoder, reduced to the present dimensions if these are fewer
encode again            queries and rows by the new encoder
"""

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.comparison import Interval, compare, mean_interval
from lathe.training.deciding.encoder_training import measure_seconds_per_document
from lathe.training.deciding.judged import (
    EncodedSearches,
    JudgedSearches,
    encode_documents,
    encode_searches,
    encode_unit_queries,
    gather_searches,
)
from lathe.training.deciding.requests import MIN_SAMPLE, MigrateRequest
from lathe.training.deciding.trial import FLOAT_BYTES, Candidate, Trial, certify_trial, choose_trial
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import FitError
from lathe.training.fitting.fit_state import FittedChain
from lathe.training.fitting.out_of_domain import OutOfDomainTexts, list_built_in_corpora
from lathe.training.fitting.pairs import MIN_TEST_QUERIES, PairTexts, find_self_matches, read_pairs
from lathe.training.fitting.requests import CODES
from lathe.training.measures import find_nearest
from lathe.training.reporting.text import MISSING, align_columns, format_duration, format_half_width
from lathe.training.sources.row_sample import sample_rows
from lathe.training.sources.source import open_source
from lathe.transforms.base import QueryPairs, measure_relevance
from lathe.transforms.chain import Chain, build_steps, parse_steps
from lathe.transforms.errors import InputError
from lathe.transforms.learned.contrastive_alignment import MIN_PAIRS, make_alignment
from lathe.transforms.learned.query_adapter import MIN_QUERIES as MIN_ADAPTED
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.vectors import FloatArray

STAY = Candidate("stay", "stay")
ADAPT = Candidate("map queries", "map queries", steps="query_adapter")
BRIDGE = Candidate("bridge", "bridge", steps="contrastive_alignment")
SMALL = Candidate("encode again, as small", "encode again, as small", encodes_again=True)
AGAIN = Candidate("encode again", "encode again", encodes_again=True)
"""The choices, cheapest first."""

FOLDS = 3
"""Number of parts of the judged queries: a part is measured by an adapter that is fitted on the other parts."""

NEAREST = 10
"""Number of nearest rows whose agreement is measured without judged queries."""

SMALLER = "pca:{dimensions}"
"""Steps that reduce vectors of the new encoder to the present dimensions."""

MAX_QUERIES = 1000
"""Maximum number of queries to compare on."""

MILLION = 1_000_000
"""Number of tokens that a price is for."""


@dataclass(frozen=True)
class Cost:
    """Cost of encoding all rows again, extrapolated from the sample.

    Attributes:
        rows: number of rows that are not blank.
        tokens: number of tokens of all rows by the new encoder's tokenizer.
        seconds: seconds that the new encoder takes on this machine; None for an embeddings API.
        price: price of a million tokens; None if unknown.
    """

    rows: int
    tokens: int
    seconds: float | None
    price: float | None

    @property
    def money(self) -> float | None:
        """Price of all tokens, or None if unknown."""
        return None if self.price is None else self.tokens * self.price / MILLION

    def describe(self) -> str:
        """Format the number of rows, the time unless an API encodes, the tokens and the price if known, as a clause."""
        tokens = f"{self.tokens / MILLION:,.3g} M tokens"
        if self.money is not None:
            tokens += f", {self.money:,.2f} at {self.price:g} a million"
        if self.seconds is None:
            return f"{self.rows:,} rows are {tokens}"
        rate = self.rows / max(self.seconds, 1e-9)
        return f"{self.rows:,} rows take {format_duration(self.seconds)} here at {rate:,.0f} rows a second ({tokens})"


@dataclass(frozen=True)
class Migration:
    """Measurements of the choices of a migration, and the decision.

    Attributes:
        request: the request.
        present: name of the present encoder.
        new: name of the new encoder.
        source: name of the source.
        searches: rows that were searched, and judged queries if there are any.
        trials: measurements of the choices, cheapest first. Choices that could not be measured are missing. The scores
            are nDCG@10 of judged queries. Without judged queries, they are the agreement with the new encoder: the
            share of the ten nearest rows by the new encoder that is found.
        cost: cost of encoding all rows again.
        notes: sentences on what was measured and left out.
    """

    request: MigrateRequest
    present: str
    new: str
    source: str
    searches: JudgedSearches = field(repr=False)
    trials: list[Trial]
    cost: Cost
    notes: tuple[str, ...]

    @property
    def judged(self) -> bool:
        """Whether judged queries were measured. If not, only the agreement with the new encoder was measured."""
        return self.request.pairs is not None

    @property
    def recommended(self) -> Trial | None:
        """The recommended choice, or None without judged queries."""
        return choose_trial(self.trials, self.searches.choose) if self.judged else None

    @property
    def encodes_again(self) -> bool:
        """Whether the recommended choice encodes all rows again."""
        return self.recommended is not None and self.recommended.candidate.encodes_again

    @property
    def takes_chain(self) -> bool:
        """Whether the recommended choice takes a chain for the vectors of the new encoder."""
        return self.encodes_again and self.recommended is not None and self.recommended.chain is not None

    @property
    def chain_name(self) -> str:
        """Name for the chain of the recommended choice, such as "e5-base-48-bytes" or "e5-base-bridge"."""
        chosen = self.recommended or self.trials[0]
        suffix = "bridge" if chosen.candidate is BRIDGE else f"{chosen.vector_bytes}-bytes"
        return "-".join([*re.findall("[a-z0-9]+", self.new.lower()), suffix])

    def find(self, candidate: Candidate) -> Trial | None:
        """Return the trial of a choice, or None if the choice was not measured."""
        return next((trial for trial in self.trials if trial.candidate is candidate), None)

    def plan_command(self) -> tuple[str, dict[str, Any]] | None:
        """Return `(command, options)` to fit the recommended adapter or bridge, else None. Rows outside a file raise.

        Raises `FitError` if the rows of the request are not in a file.
        """
        request, present = self.request, self.request.encoder or self.present
        new: dict[str, Any] = {"source": request.source.location, "encoder": request.to}
        chosen = self.recommended and self.recommended.candidate
        if chosen is ADAPT:
            return "adapt", new | {"encoder": present, "pairs": str(request.pairs), "name": "adapted"}
        if chosen is BRIDGE:
            return "fit", new | {"name": self.chain_name, "steps": BRIDGE.steps, "target_encoder": present}
        return None

    def compare(self, candidate: Candidate, other: Candidate = STAY) -> Interval:
        """Estimate the mean difference between the scores of two choices in points, with its interval, paired by query.

        Both choices must have been measured.
        """
        after, before = (trial.points for trial in (self.find(candidate), self.find(other)) if trial is not None)
        return compare(after, before)

    def write_sentence(self) -> str:
        """Write the decision with gain and cost. Without judged queries, write "undecided" and the agreement."""
        stay, has_bridge = self.trials[0], self.find(BRIDGE) is not None
        if self.recommended is None:
            agreement = {trial.candidate: _format(mean_interval(trial.points), ".1f") for trial in self.trials}
            bridge = f", and a bridge finds {agreement[BRIDGE]} %" if has_bridge else ""
            return (
                f"Undecided: {self.present} finds {agreement[STAY]} % of the ten nearest rows by {self.new}{bridge}. "
                f"That says how much results would change, and nothing about which are better: give judged queries "
                f"(--pairs). To encode again, {self.cost.describe()}."
            )

        chosen = self.recommended.candidate
        queries = f"points on {len(stay.points):,} judged queries"
        again, documents = self.compare(AGAIN), len(self.searches.documents)
        if chosen is ADAPT:
            return (
                f"Stay, and map queries: an adapter of the judged searches changes nDCG@10 by "
                f"{_format(self.compare(ADAPT))} {queries}, and no row is encoded again. {self.new} changes it by "
                f"{_format(again)}."
            )
        if chosen is STAY:
            verdict = "which is a loss" if again.sign < 0 else "which is not a gain beyond chance"
            # A search among few rows is easy for both encoders, so a sample can hide a gain among all rows.
            among = f" among {documents:,} of {self.cost.rows:,} rows" if documents < self.cost.rows else ""
            return f"Stay: {self.new} changes nDCG@10 by {_format(again)} {queries}, {verdict}{among}."
        if chosen is BRIDGE:
            return (
                f"Bridge: queries by {self.new}, mapped to the present vectors, change nDCG@10 by "
                f"{_format(self.compare(BRIDGE))} {queries}, and no row is encoded again. To encode again changes it "
                f"by {_format(self.compare(AGAIN, BRIDGE))} more, and {self.cost.describe()}."
            )
        bridge = f" A bridge changes it by {_format(self.compare(BRIDGE))} instead." if has_bridge else ""
        size = f", in {self.recommended.vector_bytes:,} bytes a vector as now," if chosen is SMALL else ""
        return (
            f"Encode again: {self.new}{size} changes nDCG@10 by {_format(self.compare(chosen))} "
            f"{queries}; {self.cost.describe()}.{bridge}"
        )

    def format(self) -> str:
        """Format the decision as text: sentences, a table of the choices, and notes."""
        measure = "nDCG@10" if self.judged else f"% of the ten nearest by {self.new}"
        rows = [["choice", measure, "against stay", "bytes", "encoded again"]]
        for trial in self.trials:
            choice = trial.candidate
            label = ("* " if trial is self.recommended else "  ") + choice.label
            difference = MISSING if choice is STAY else _format(self.compare(choice))
            encoded = f"{self.cost.rows:,} rows" if choice.encodes_again else "no rows"
            rows.append([label, f"{trial.points.mean():.1f}", difference, f"{trial.vector_bytes:,}", encoded])
        return "\n\n".join([self.write_sentence(), align_columns(rows), *self.notes])

    def to_json(self) -> dict[str, Any]:
        """Convert the decision, the measurements of all choices and the cost to a JSON-serializable dict.

        `difference` of a choice is the difference to staying, in points with its 95 % interval. `recommended` is None
        without judged queries.
        """
        choices = [
            {
                "name": trial.candidate.name,
                "mean": float(trial.points.mean()),
                "difference": asdict(self.compare(trial.candidate)),
                "vector_bytes": trial.vector_bytes,
            }
            for trial in self.trials
        ]
        return {
            "sentence": self.write_sentence(),
            "notes": list(self.notes),
            "recommended": None if self.recommended is None else self.recommended.candidate.name,
            "from": self.present,
            "to": self.new,
            "source": self.source,
            "measure": "ndcg_at_10" if self.judged else "agreement_at_10",
            "measured": len(self.trials[0].points),
            "documents": len(self.searches.documents),
            "choices": choices,
            "cost": asdict(self.cost) | {"money": self.cost.money},
        }

    def certify(
        self, encoder: TextEncoder, folder: Path, command: str | None, on_progress: Progress
    ) -> FittedChain | None:
        """Certify the recommended choice's chain for vectors of the new encoder, and return it with its certificate.

        Returns None if the recommended choice takes no such chain. See `certify_trial`; `relevance` in the certificate
        has nDCG@10 of the judged queries.

        Args:
            encoder: the new encoder.
            folder: cache folder of out-of-domain texts.
            command: the user's command, for the provenance.
            on_progress: called with progress in [0, 1] and a message.
        """
        if self.recommended is None or not self.takes_chain:
            return None
        return certify_trial(
            self.recommended,
            self.searches,
            encoder,
            OutOfDomainTexts(list_built_in_corpora(self.request.source.path), folder),
            on_progress,
            source=self.source,
            seed=self.request.seed,
            command=command,
            notes=self.notes,
        )


def decide_migration(
    request: MigrateRequest,
    present: TextEncoder,
    new: TextEncoder,
    on_progress: Progress,
    stored: Chain | None = None,
) -> Migration:
    """Measure whether to stay, to bridge or to encode again. Without judged queries, nothing is recommended.

    With judged queries, the choices are compared by nDCG@10. Without judged queries, only the agreement of the nearest
    rows with the new encoder is measured.

    Adapters are fitted on other judged queries than they are measured on. Reductions, codes and the bridge are fitted
    on `fit_rows`; the bridge is the map that a reindexing fits.

    Args:
        request: what to compare.
        present: encoder of the stored vectors.
        new: the other encoder.
        on_progress: called with progress in [0, 1] and a message.
        stored: chain through which the rows are stored now; None if float vectors or the request's codes are stored.

    Raises:
        FitError: if both encoders give the same vectors, the source or the queries are vectors, there are too few rows
            or queries, or pairs are malformed.
        SourceError: if a file cannot be read.
        EncoderError: if an encoder fails on a text.
        TransformError: if there are too few rows to fit codes of the requested bytes on.
    """
    if present.fingerprint == new.fingerprint:
        raise FitError(f"{new.name} and {present.name} give the same vectors: name another encoder to migrate to")
    judged = PairTexts({}, 0) if request.pairs is None else _sample_queries(read_pairs(request.pairs), request.seed)
    on_progress(0.0, "sampling rows")
    relevant = len({text for _, text in judged.pairs})
    every = np.arange(len(judged.by_query))
    searches = gather_searches(
        request.source, PairTexts({}, 0), judged, [(every, every)], request.sample_rows + relevant, request.seed
    )
    if not judged.by_query and len(searches.documents) < MIN_SAMPLE:
        raise FitError(
            f"the source has {len(searches.documents)} different rows; without judged queries, {MIN_SAMPLE} are needed"
        )
    # Relevant documents, which come first, are fitted on only if there are too few other rows: a bridge that was fitted
    # on relevant documents would map queries to them better than to other rows.
    others = searches.fit_rows[searches.fit_rows >= relevant]
    searches = replace(searches, fit_rows=others if len(others) >= MIN_SAMPLE else searches.fit_rows)

    first, second = part_of(on_progress, 0.0, 0.45), part_of(on_progress, 0.45, 0.9)
    if judged.by_query:
        moved = encode_searches(searches, new, first)
        pairs = encode_searches(searches, present, second).measured
    else:  # agreement with the new encoder is measured
        moved = _encode_unjudged(request, searches, new, first)
        pairs = _encode_unjudged(request, searches, present, second, moved.measured.relevant).measured
    on_progress(0.9, f"fitting a bridge on {len(searches.fit_rows):,} rows")
    choices = _Choices(request, searches.fit_rows, pairs, moved, stored)
    trials = list(choices.measure())
    return Migration(
        request,
        present.name,
        new.name,
        open_source(request.source.location).name,
        searches,
        trials,
        _estimate_cost(request, new, searches, float(moved.tokens.mean())),
        (*choices.notes, *judged.notes, *searches.notes),
    )


class _Choices:
    """The choices of a migration, which `measure` fits and measures.

    Args:
        request: the request.
        fit_rows: rows of the documents to fit on.
        present: queries and documents by the present encoder.
        moved: queries and documents by the new encoder.
        stored: chain through which the rows are stored now; None for none.

    Attributes:
        notes: sentences on choices that could not be measured, and on the bridge.
    """

    def __init__(
        self,
        request: MigrateRequest,
        fit_rows: NDArray[np.int64],
        present: QueryPairs,
        moved: EncodedSearches,
        stored: Chain | None,
    ) -> None:
        self.request = request
        self.present, self.moved = present, moved
        self.old, self.new = present.documents[fit_rows], moved.documents[fit_rows]
        as_now = None if stored is None or stored.quantizer is None else stored.bytes_per_vector
        self.bytes = request.bytes or as_now
        self.stored = _fit_codes(self.old, self.bytes) if stored is None else stored
        self.notes: list[str] = []

    def measure(self) -> Iterator[Trial]:
        """Fit and measure the choices, and yield trials, cheapest first. For choices that fail, a note is added.

        Without judged queries, mapping queries and encoding again are left out.
        """
        judged = self.request.pairs is not None
        stored_dimensions = self.old.shape[1]
        if self.stored is not None and self.stored.output_dimensions is not None:
            stored_dimensions = self.stored.output_dimensions
        yield self._measure(STAY, self.present, self.stored)
        try:
            if judged:
                mapped = _adapt_queries(self.present, self.request.seed)
                yield self._measure(ADAPT, replace(self.present, queries=mapped), self.stored)
        except InputError as error:
            self.notes.append(f"Mapping queries was not tried: {error}.")
        try:
            bridge = self._fit_bridge()
            queries = bridge.transform(self.moved.measured.queries)
            yield self._measure(BRIDGE, replace(self.present, queries=queries), self.stored)
            self.notes.append(f"The bridge was fitted on {len(self.new):,} rows.")
        except InputError as error:
            self.notes.append(f"There is no bridge: {error}.")
        try:
            if self.bytes is None and self.new.shape[1] > stored_dimensions:
                smaller = Chain(parse_steps(SMALLER.format(dimensions=stored_dimensions))).fit(self.new)
                yield self._measure(SMALL, self.moved.measured, smaller)
        except InputError as error:
            self.notes.append(f"Encoding again, as small, was not tried: {error}.")
        if judged:  # the agreement of the new encoder with itself says nothing
            yield self._measure(AGAIN, self.moved.measured, _fit_codes(self.new, self.bytes))

    def _measure(self, candidate: Candidate, pairs: QueryPairs, chain: Chain | None) -> Trial:
        """Measure nDCG@10, or without judged queries recall@10, of vectors that are mapped by a chain, if there is one.

        The trial keeps the chain only if the rows are encoded again.
        """
        if chain is not None:
            pairs = pairs.map(chain.transform_queries, chain.floats)
        # Agreement with the new encoder is recall of its ten nearest rows.
        scores = measure_relevance(pairs)[0 if self.request.pairs is not None else 1]
        size = None if chain is None else chain.bytes_per_vector
        # Only rows that are encoded again can take the chain that is measured here.
        published, searches = (chain, self.moved) if candidate.encodes_again else (None, None)
        return Trial(
            candidate,
            size or FLOAT_BYTES * pairs.documents.shape[1],
            scores=scores,
            chain=published,
            searches=searches,
        )

    def _fit_bridge(self) -> Chain:
        if len(self.new) < MIN_PAIRS:
            raise InputError(f"{len(self.new)} rows are left to fit it on, and {MIN_PAIRS} are needed")
        return Chain([make_alignment(self.new.shape[1], self.old.shape[1])]).fit(self.new, targets=self.old)


def _encode_unjudged(
    request: MigrateRequest,
    searches: JudgedSearches,
    encoder: TextEncoder,
    on_progress: Progress,
    answers: NDArray[np.int64] | None = None,
) -> EncodedSearches:
    """Encode the documents and the queries, or held-out rows as queries if there are none. Vector queries raise.

    `answers` are the documents to find, as rows of query and document `(10 n, 2)`. If None, these are the ten nearest
    documents by this encoder.

    Raises:
        FitError: if the request's queries are vectors.
    """
    encoding = encode_documents(encoder, searches.documents, on_progress)
    if request.queries is not None:
        sampled = sample_rows(open_source(request.queries.location), MAX_QUERIES, request.seed)
        if sampled.vectors is not None:
            raise FitError(f"the queries {request.queries.location!r} are vectors: give texts, to encode them")
        queries = encode_unit_queries(encoder, sampled.texts)
        own = find_self_matches(sampled.texts, searches.documents)
    else:
        held_out = searches.heldout_rows
        queries = encoding.vectors[held_out]
        own = np.stack([np.arange(len(held_out)), held_out], axis=1)
    if answers is None:
        answers = _list_nearest(queries, encoding.vectors, own)
    return EncodedSearches(None, QueryPairs(queries, encoding.vectors, answers, own), encoding.tokens)


def _sample_queries(judged: PairTexts, seed: int) -> PairTexts:
    """Sample at most `MAX_QUERIES` queries with their pairs. Raise `FitError` for fewer than `MIN_TEST_QUERIES`."""
    queries = list(judged.by_query)
    if len(queries) < MIN_TEST_QUERIES:
        raise FitError(f"the pairs have {len(queries)} different queries; at least {MIN_TEST_QUERIES} are needed")
    if len(queries) <= MAX_QUERIES:
        return judged
    chosen = np.random.default_rng(seed).permutation(len(queries))[:MAX_QUERIES]
    return replace(judged, by_query={queries[i]: judged.by_query[queries[i]] for i in np.sort(chosen)})


def _list_nearest(queries: FloatArray, documents: FloatArray, own: NDArray[np.int64]) -> NDArray[np.int64]:
    """List the ten nearest documents of each query, without self-matches, as rows of query and document `(10 n, 2)`."""
    nearest = find_nearest(queries, documents, NEAREST, own)
    return np.stack([np.repeat(np.arange(len(queries)), NEAREST), nearest.ravel()], axis=1)


def _fit_codes(rows: FloatArray, size: int | None) -> Chain | None:
    return None if size is None else Chain(build_steps([{"kind": CODES, "bytes": size}])).fit(rows)


def _adapt_queries(pairs: QueryPairs, seed: int) -> FloatArray:
    """Map queries `(n, d)` by adapters fitted on the other folds. Raise `InputError` for too few queries."""
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


def _estimate_cost(request: MigrateRequest, encoder: TextEncoder, searches: JudgedSearches, tokens: float) -> Cost:
    """Estimate tokens, seconds and price of encoding all rows. The encoder is timed, unless it is behind an API.

    The price is the request's, else the price in the encoder's settings.
    """
    upstream, rows, seconds = encoder.spec.upstream, searches.rows, None
    if upstream is None:
        seconds = rows * measure_seconds_per_document(encoder, searches.documents)
    price = request.price if request.price is not None or upstream is None else upstream.price
    return Cost(rows, round(rows * tokens), seconds, price)


def _format(estimate: Interval, spec: str = "+.1f") -> str:
    return format_half_width(estimate, spec, " ± ")
