"""Candidates of a decision, their measurements, and the choice among them.

A decision tries candidates in the order of their cost, and takes the cheapest candidate that no other candidate beats.
The chain that was measured is published, not another fit of the same steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from lathe.training.comparison import Array, Interval, choose_cheapest, compare
from lathe.training.deciding.judged import EncodedSearches, JudgedSearches, Rows
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.encoder.text_encoder import TextEncoder, with_document_prompt
from lathe.training.fitting.code_search import keep_default
from lathe.training.fitting.fit import build_provenance, list_training_logs
from lathe.training.fitting.fit_state import FittedChain
from lathe.training.fitting.out_of_domain import OutOfDomainTexts
from lathe.training.workspace import digest
from lathe.transforms.artifact import FitDistribution
from lathe.transforms.base import QueryPairs
from lathe.transforms.chain import Chain, retained_subspace
from lathe.transforms.progress import Progress
from lathe.transforms.quality import certify

FLOAT_BYTES = 4
"""Bytes of a stored dimension."""


@dataclass(frozen=True)
class Candidate:
    """A change that a decision tries, or no change.

    Attributes:
        name: key of the candidate in results.
        label: description for tables and sentences, in the imperative.
        encodes_again: whether all documents must be encoded again.
        steps: steps of a chain on the encoder's vectors, as text; empty for no chain.
        training: what the encoder is trained on: the pairs of judged searches, or labelled folders and then the pairs;
            None if the encoder is not trained.
    """

    name: str
    label: str
    encodes_again: bool = False
    steps: str = ""
    training: Literal["pairs", "folders and pairs"] | None = None


@dataclass(frozen=True)
class Trial:
    """Measurements of a candidate, with vectors in the form in which they would be stored.

    Attributes:
        candidate: the candidate.
        vector_bytes: bytes of a stored vector.
        bytes: bytes of a vector's byte code; None for floats.
        scores: score in [0, 1] of each measured query, `(n,)`; None if the candidate was not tried.
        chain: fitted chain that was measured, without steps if vectors stay as they are; None if the candidate was not
            tried, or takes no chain.
        searches: vectors that the chain was measured on; None without a chain.
        halves: vectors of the halves of out-of-domain texts by the same encoder, by corpus.
        out_of_domain: nDCG@10 of searches between the halves, by corpus.
        seconds: seconds that fitting or training took.
        encode_seconds: estimated seconds to encode all documents again; 0 if the vectors of documents stay.
        encoder: spec of the encoder that was trained for the candidate, whose model exists as long as the workspace
            folder; None without training.
        problem: why the candidate was not tried; None if it was.
        notes: warnings of the fit, such as a map that was left out.
    """

    candidate: Candidate
    vector_bytes: int
    bytes: int | None = None
    scores: Array | None = None
    chain: Chain | None = field(default=None, repr=False)
    searches: EncodedSearches | None = field(default=None, repr=False)
    halves: Mapping[str, QueryPairs] = field(default_factory=dict, repr=False)
    out_of_domain: Mapping[str, Array] = field(default_factory=dict)
    seconds: float = 0.0
    encode_seconds: float = 0.0
    encoder: EncoderSpec | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def points(self) -> Array:
        """Scores × 100 of all measured queries, `(n,)`. The candidate must have been tried."""
        assert self.scores is not None
        return 100 * self.scores

    def scores_of(self, rows: Rows) -> Array:
        """Return the scores of the measured queries in these rows, `(k,)`. The candidate must have been tried."""
        assert self.scores is not None
        return self.scores[rows]


def choose_trial(trials: Sequence[Trial], rows: Rows) -> Trial:
    """Choose the cheapest trial that significantly beats the first trial, and that no other such trial beats.

    The first trial is chosen if no trial beats it. One trial beats another if the mean difference of their scores is
    positive and its 95 % interval, paired by query, excludes 0. Trials without scores are skipped.

    Args:
        trials: trials, cheapest first. The first must have scores.
        rows: rows of the measured queries that choose.
    """
    tried = [trial for trial in trials if trial.scores is not None]
    return tried[choose_cheapest([trial.scores_of(rows) for trial in tried])]


def cross_validate(trials: Sequence[Trial], searches: JudgedSearches) -> Interval:
    """Estimate by cross-validation how much the score gains if `choose_trial` replaces the first trial.

    In every fold, a trial is chosen on some queries and measured on other queries, so that chance in choosing does not
    raise the gain. Returns the mean difference to the first trial with its interval.

    Args:
        trials: trials as for `choose_trial`.
        searches: the judged searches.
    """
    after = [choose_trial(trials, choose).scores_of(report) for choose, report in searches.folds]
    before = [trials[0].scores_of(report) for _, report in searches.folds]
    return compare(np.concatenate(after), np.concatenate(before))


def certify_trial(
    trial: Trial,
    searches: JudgedSearches,
    encoder: TextEncoder,
    out_of_domain: OutOfDomainTexts,
    on_progress: Progress,
    *,
    source: str,
    seed: int,
    command: str | None,
    notes: Sequence[str] = (),
) -> FittedChain | None:
    """Certify a trial's chain on held-out documents and the reporting queries. Returns None for a trial without steps.

    The certificate, the encoder and the provenance become the chain's metadata.

    Args:
        trial: the trial.
        searches: the judged searches.
        encoder: encoder of the vectors.
        out_of_domain: out-of-domain texts.
        on_progress: called with progress in [0, 1] and a message.
        source: name of the source, for the provenance.
        seed: seed of the split of the documents.
        command: the user's command, for the provenance.
        notes: sentences on what the decision left out.
    """
    if trial.chain is None or trial.searches is None or not len(trial.chain):
        return None
    chain, documents = trial.chain, trial.searches.documents
    fitted, heldout = documents[searches.fit_rows], documents[searches.heldout_rows]
    encoder = with_document_prompt(encoder)  # as the documents were encoded
    on_progress(0.0, "certifying the measured chain")
    certificate = certify(
        chain,
        heldout,
        n_fit=len(fitted),
        seed=seed,
        out_of_domain=out_of_domain.encode(encoder, on_progress),
        warnings=[note.rstrip(".") for note in (*notes, *trial.notes)],
        pairs=trial.searches.measured.select(searches.report),
        out_of_domain_pairs=trial.halves or None,
    )
    if "codes" in certificate:
        certificate["codes"] |= keep_default(chain, "the decision measured the default codes").describe()
    provenance = build_provenance(
        source, rows=len(searches.documents), rows_digest=digest(searches.documents), seed=seed, command=command
    )
    chain.metadata = {
        "encoder": encoder.describe(),
        "target_encoder": None,
        "provenance": provenance | {"training": list_training_logs(chain)},
        "certificate": certificate,
    }
    return FittedChain(chain, FitDistribution.measure(fitted, heldout, retained_subspace(chain)), certificate, [])
