"""Adaptation to judged searches: candidates are measured on held-out queries, and the cheapest unbeaten one is taken.

judged queries ─┬─ three fifths: adapters and encoders learn from these queries
                ├─ a fifth: chooses the candidate
                └─ a fifth: reports the gain of the choice, so that chance in choosing cannot raise the gain
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from lathe.training.comparison import compare
from lathe.training.deciding.encoder_training import ALL_QUERIES, Budget, EncoderTrainings
from lathe.training.deciding.judged import EncodedSearches, JudgedSearches, encode_searches, gather_searches
from lathe.training.deciding.requests import HELD_OUT_SHARE, AdaptRequest
from lathe.training.deciding.trial import FLOAT_BYTES, Candidate, Trial, certify_trial, choose_trial, cross_validate
from lathe.training.encoder.opening import open_encoder
from lathe.training.encoder.spec import VectorStores
from lathe.training.encoder.text_encoder import TextEncoder, with_document_prompt
from lathe.training.fitting.fit_state import FittedChain
from lathe.training.fitting.out_of_domain import OutOfDomainTexts, list_built_in_corpora
from lathe.training.fitting.pairs import MIN_TEST_QUERIES, POOL_SIZE, PairTexts, encode_halves_by_corpus, read_pairs
from lathe.training.fitting.requests import CODES
from lathe.training.sources.source import open_source
from lathe.training.workspace import claim_workspace_folder, digest
from lathe.transforms.base import QueryPairs, Transform, measure_relevance
from lathe.transforms.chain import Chain, build_steps, parse_steps
from lathe.transforms.errors import InputError
from lathe.transforms.progress import Progress, part_of

AS_IS = Candidate("as_is", "leave as is")
CANDIDATES = (
    AS_IS,
    Candidate("debias", "debias", steps="r2"),
    Candidate("query_adapter", "map queries", steps="query_adapter"),
    Candidate("fine_tuning", "fine-tune the encoder", encodes_again=True, training="pairs"),
    Candidate("pre_finetuning", "pre-finetune, then fine-tune", encodes_again=True, training="folders and pairs"),
)
"""All candidates, cheapest first. Debiasing changes stored vectors without encoding. A query adapter changes only
queries; both are fitted in seconds. Training takes minutes to hours, and then all documents are encoded again."""

ENCODED, FITTED = 0.7, 0.3
"""Share of the progress of candidates without training for encoding, and share of all progress for these candidates."""


@dataclass(frozen=True)
class Adaptation:
    """All trials of an adaptation, and the recommended trial.

    Attributes:
        request: the request.
        encoder: the base encoder.
        searches: judged searches, split into queries to learn from, to choose by and to report on.
        trials: all trials, first with floats, then with byte codes; in both parts the cheapest candidate comes first.
        recommended: the recommended trial. With too few judged queries, it leaves the vectors as they are.
        out_of_domain: out-of-domain texts to certify a chain with.
        shortage: sentence on how many judged queries are missing; None if there are enough.
    """

    request: AdaptRequest
    encoder: TextEncoder
    searches: JudgedSearches
    trials: list[Trial]
    recommended: Trial
    out_of_domain: OutOfDomainTexts
    shortage: str | None

    @property
    def floats(self) -> list[Trial]:
        """Trials with float vectors, cheapest first."""
        return [trial for trial in self.trials if trial.bytes is None]

    @property
    def rivals(self) -> list[Trial]:
        """Trials to choose from: the trials with byte codes if there are any, else all trials."""
        return _list_rivals(self.trials)

    @property
    def baseline(self) -> Trial:
        """The trial of the encoder's unchanged float vectors, to which all others are compared."""
        return self.trials[0]

    @property
    def is_certain(self) -> bool:
        """Whether the recommendation is certain to help. True if nothing was measured.

        True if the recommended candidate is `AS_IS`, also if nothing was measured. Otherwise True if the 95 % intervals
        of two gains over unchanged vectors of the same bytes lie above 0: the gain of the recommended trial on the
        queries to report on, and the gain of choosing by `cross_validate`.
        """
        chosen, unchanged, report = self.recommended, self.rivals[0], self.searches.report
        if chosen.candidate is AS_IS:
            return True
        own = compare(chosen.scores_of(report), unchanged.scores_of(report))
        return own.sign > 0 and cross_validate(self.rivals, self.searches).sign > 0

    def certify(self, encoder: TextEncoder, command: str | None, on_progress: Progress) -> FittedChain | None:
        """Certify the chain of transforms of the recommended trial, and return the chain with its certificate.

        Returns None if the recommended trial has no chain, or a chain without steps. See `certify_trial`.

        Args:
            encoder: encoder of the vectors: the base encoder, or the trained encoder of the recommended trial.
            command: the user's command, for the provenance.
            on_progress: called with progress in [0, 1] and a message.
        """
        path = self.request.source.path
        return certify_trial(
            self.recommended,
            self.searches,
            encoder,
            self.out_of_domain,
            on_progress,
            source="texts" if path is None else open_source(path).name,
            seed=self.request.seed,
            command=command,
            notes=self.searches.notes,
        )


def read_searches(request: AdaptRequest) -> JudgedSearches:
    """Read documents, and split judged queries to learn from, choose by and report on. Too few documents raise.

    Three fifths, at random, are to learn from, a fifth is to choose by, and a fifth is to report on. In a second fold,
    the last two fifths swap roles. With test pairs in the request, the test queries report, four fifths of the other
    queries are to learn from, a fifth is to choose by, and there is one fold.

    Raises:
        FitError: if the source holds vectors, pairs are malformed or missing, a test query is also a query of the other
            pairs, or there are too few documents.
        SourceError: if a file cannot be read.
    """
    judged = read_pairs(request.pairs)
    test = None if request.test_pairs is None else read_pairs(request.test_pairs)
    if test is not None:
        judged.check_disjoint(test)

    queries = list(judged.by_query)
    order = np.random.default_rng(request.seed).permutation(len(queries))
    count = int(len(queries) * HELD_OUT_SHARE)
    parts = [order[:0], order[:count], order[count:]]
    if test is None:
        parts = [order[:count], order[count : 2 * count], order[2 * count :]]
    report, choose, learn = (judged.select([queries[row] for row in np.sort(part)]) for part in parts)
    report = test or report
    rows = np.arange(len(choose.by_query) + len(report.by_query))
    fold = (rows[: len(choose.by_query)], rows[len(choose.by_query) :])
    folds = [fold] if test is not None else [fold, fold[::-1]]

    notes = (*judged.notes, *([] if test is None else test.notes))
    measured = PairTexts(choose.by_query | report.by_query, 0)
    searches = gather_searches(request.source, learn, measured, folds, POOL_SIZE, request.seed)
    return replace(searches, notes=(*notes, *searches.notes))


def find_shortage(searches: JudgedSearches) -> str | None:
    """Return a sentence if fewer than `MIN_TEST_QUERIES` queries are to choose by or to report on, else None."""
    choose, report = searches.folds[0]
    counts = {"choose by": len(choose), "report on": len(report)}
    short = [f"{count} to {what}" for what, count in counts.items() if count < MIN_TEST_QUERIES]
    if not short:
        return None
    judged = len(searches.learn.by_query) + len(searches.measured.by_query)
    return (
        f"{judged} different judged queries leave {' and '.join(short)}, and {MIN_TEST_QUERIES} are needed: fewer "
        f"cannot tell a gain from chance. From {round(MIN_TEST_QUERIES / HELD_OUT_SHARE)} queries on, debiasing is "
        f"tried, and from {ALL_QUERIES} on, a map of queries and training too"
    )


@contextmanager
def try_candidates(
    request: AdaptRequest,
    encoder: TextEncoder,
    workspace: Path,
    on_progress: Progress,
    device: str | None = None,
    stores: VectorStores | None = None,
    on_work_folder: Callable[[Path], None] | None = None,
) -> Iterator[Adaptation]:
    """Fit or train all candidates, and yield an `Adaptation` with their trials. With too few queries, none is tried.

    Without a trial, the recommendation is to leave the vectors as they are. A stopped run is resumed from its workspace
    folder. The folders of trained encoders exist only within the block, see `claim_workspace_folder`.

    Args:
        request: documents, judged searches and settings. The files that it names are read here.
        encoder: the base encoder.
        workspace: folder for the workspace folders.
        on_progress: called with progress in [0, 1] and a message.
        device: torch device of training; None for the best there is.
        stores: where vectors of a trained encoder are stored; None stores none.
        on_work_folder: called with the workspace folder, below which trainings write.

    Raises:
        FitError: as `AdaptRequest.check` and `read_searches`.
        SourceError: if a file cannot be read.
        EncoderError: if the encoder fails on a text.
    """
    request.check()
    on_progress(0.0, "reading documents and judged queries")
    searches = read_searches(request)
    # All that trainings depend on: other texts, another division or seed, or another encoder get another folder.
    texts = [searches.documents, searches.learn.by_query, searches.measured.by_query]
    key = f"adapt-{digest(encoder.vectors_key, texts, len(searches.folds), request.folders, request.seed)[:32]}"
    with claim_workspace_folder(workspace, key, keep=request.name is None) as folder:
        if on_work_folder is not None:
            on_work_folder(folder)
        corpora = OutOfDomainTexts(list_built_in_corpora(request.source.path), workspace / "out_of_domain")
        shortage = find_shortage(searches)
        if shortage is not None:
            trials = [_build_skipped_trial(candidate, encoder, None, shortage) for candidate in CANDIDATES]
        else:
            budget = Budget(request.budget, folder)
            trials = _try_steps_alone(request, encoder, searches, corpora, part_of(on_progress, 0.0, FITTED))
            trainings = EncoderTrainings(request, encoder, searches, folder, budget, device)
            trials += _try_trainings(trainings, corpora, stores, part_of(on_progress, FITTED, 1.0))
            budget.save()
        trials.sort(key=lambda trial: trial.bytes is not None)  # stable: the cheapest of each stays first
        recommended = trials[0] if shortage else choose_trial(_list_rivals(trials), searches.choose)
        yield Adaptation(request, encoder, searches, trials, recommended, corpora, shortage)


def _list_rivals(trials: list[Trial]) -> list[Trial]:
    coded = [trial for trial in trials if trial.bytes is not None]
    return coded or trials


def _try_steps_alone(
    request: AdaptRequest,
    encoder: TextEncoder,
    searches: JudgedSearches,
    corpora: OutOfDomainTexts,
    on_progress: Progress,
) -> list[Trial]:
    """Fit and measure the candidates that train no encoder, and return trials. A fit that fails is a trial too."""
    measures = _Measures.encode(searches, encoder, corpora, part_of(on_progress, 0.0, ENCODED))
    candidates = [candidate for candidate in CANDIDATES if candidate.training is None]
    trials: list[Trial] = []
    for done, candidate in enumerate(candidates):
        on_progress(ENCODED + (1 - ENCODED) * done / len(candidates), f"trying to {candidate.label}")
        trials += measures.try_steps(candidate, request.bytes)
    return trials


def _try_trainings(
    trainings: EncoderTrainings, corpora: OutOfDomainTexts, stores: VectorStores | None, on_progress: Progress
) -> list[Trial]:
    """Train an encoder for every candidate with a training, and measure it. Skipped candidates have a `problem`.

    A candidate is skipped if its encoder cannot be trained, or not within the budget.
    """
    request, searches = trainings.request, trainings.searches
    candidates = [candidate for candidate in CANDIDATES if candidate.training is not None]
    trials: list[Trial] = []
    for done, candidate in enumerate(candidates):
        step = part_of(on_progress, done / len(candidates), (done + 1) / len(candidates))
        if (problem := trainings.explain_omission(candidate)) is not None:
            sizes = dict.fromkeys((None, request.bytes))
            trials += [_build_skipped_trial(candidate, trainings.encoder, size, problem) for size in sizes]
            continue
        trained, seconds = trainings.train(candidate, part_of(step, 0.0, 0.8))
        encoder = open_encoder(trained, trainings.device, stores)
        measures = _Measures.encode(searches, encoder, corpora, part_of(step, 0.8, 1.0))
        encode_seconds = trainings.seconds_per_document * searches.rows
        tried = measures.try_steps(candidate, request.bytes)
        trials += [
            replace(trial, seconds=trial.seconds + seconds, encode_seconds=encode_seconds, encoder=trained)
            for trial in tried
        ]
    return trials


def _build_skipped_trial(candidate: Candidate, encoder: TextEncoder, size: int | None, problem: str) -> Trial:
    """Build the trial of a candidate that is not tried: without scores, and with the reason as `problem`.

    `size` is the number of bytes of a vector's code, or None for floats.
    """
    return Trial(candidate, size or FLOAT_BYTES * encoder.dimensions, size, problem=problem)


@dataclass(frozen=True)
class _Measures:
    """Vectors of judged searches and of out-of-domain texts by one encoder, on which candidates are measured."""

    encoder: TextEncoder
    texts: JudgedSearches
    searches: EncodedSearches
    halves: dict[str, QueryPairs]

    @classmethod
    def encode(
        cls, texts: JudgedSearches, encoder: TextEncoder, corpora: OutOfDomainTexts, on_progress: Progress
    ) -> "_Measures":
        searches = encode_searches(texts, encoder, on_progress)
        return cls(encoder, texts, searches, encode_halves_by_corpus(corpora, with_document_prompt(encoder)))

    def try_steps(self, candidate: Candidate, size: int | None) -> list[Trial]:
        """Fit a candidate's transforms, and measure float vectors and byte codes of `size`. Failed fits give a problem.

        If the transforms cannot be fitted, the trials have the reason as `problem`. Held-out documents, on which the
        published chain is certified, are searched but not fitted on. `size` is the number of bytes of a vector's code.
        """
        begun = perf_counter()
        sizes = dict.fromkeys((None, size))
        try:
            chain = Chain(parse_steps(candidate.steps) if candidate.steps else [])
            steps = [step for step in chain.transforms if isinstance(step, Transform)]
            pairs = self.searches.learn if any(step.takes_pairs for step in steps) else None
            fitted = self.searches.documents[self.texts.fit_rows]
            chain.fit(fitted, pairs=pairs)
        except InputError as error:
            return [_build_skipped_trial(candidate, self.encoder, one, str(error)) for one in sizes]
        notes = tuple(note for step in steps for note in step.fit_warnings())
        trials = [self._measure(candidate, chain, None, begun, notes)]
        if size is not None:
            codes = build_steps([{"kind": CODES, "bytes": size}])[0].fit(chain.transform(fitted))
            coded = Chain([*chain.transforms, codes], chain.normalize)
            trials.append(self._measure(candidate, coded, size, begun, notes))
        return trials

    def _measure(
        self, candidate: Candidate, chain: Chain, size: int | None, begun: float, notes: tuple[str, ...]
    ) -> Trial:
        """Measure nDCG@10 of a fitted chain on the measured queries and on out-of-domain texts, as a trial."""
        seconds = perf_counter() - begun

        def measure(pairs: QueryPairs) -> NDArray[np.float64]:
            # Documents are scored as they are decoded from storage, so that codes lose here what they lose in a search.
            return measure_relevance(pairs.map(chain.transform_queries, chain.floats))[0]

        return Trial(
            candidate,
            size or FLOAT_BYTES * self.searches.documents.shape[1],
            size,
            scores=measure(self.searches.measured),
            chain=chain,
            searches=self.searches,
            halves=self.halves,
            out_of_domain={name: measure(pairs) for name, pairs in self.halves.items()},
            seconds=seconds,
            notes=notes,
        )
