"""Each candidate change is measured on held-out queries, and the cheapest that is not beaten is recommended.

judged queries ─┬─ three fifths: adapters and encoders learn from them
                ├─ a fifth: by these the change is chosen
                └─ a fifth: on these the gain of the choice is reported, which chance in choosing cannot raise

What is published is the very chain that was measured, see `certify_recommended`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from lathe.training.comparison import compare
from lathe.training.deciding.adapt_request import AdaptRequest
from lathe.training.deciding.encoder_training import (
    FOLDER_EPOCHS,
    PASSES,
    TrainingSettings,
    choose_training_settings,
    find_training_obstacle,
    measure_seconds_per_document,
    train_candidate,
)
from lathe.training.deciding.judged import (
    ALL_QUERIES,
    JudgedSearches,
    JudgedVectors,
    encode_searches,
    read_searches,
)
from lathe.training.deciding.trial import (
    AS_IS,
    CANDIDATES,
    Budget,
    Candidate,
    MeasuredChain,
    Relevance,
    Trial,
    choose_trial,
    cross_validate,
)
from lathe.training.digests import digest
from lathe.training.encoder.opening import open_encoder, without_store
from lathe.training.encoder.spec import EncoderSpec, VectorStores
from lathe.training.encoder.text_encoder import TextEncoder, with_document_prompt
from lathe.training.fitting.fit import build_provenance, certify_measured
from lathe.training.fitting.fit_state import FittedChain
from lathe.training.fitting.out_of_domain import OutOfDomainTexts, list_built_in_corpora
from lathe.training.fitting.pairs import encode_all_halves
from lathe.training.fitting.requests import CODES
from lathe.training.sources.source import open_source
from lathe.training.workspace import claim_workspace_folder
from lathe.transforms.base import QueryPairs, Transform, measure_relevance
from lathe.transforms.chain import Chain, build_steps, parse_steps
from lathe.transforms.errors import InputError
from lathe.transforms.learned.query_adapter import MIN_QUERIES
from lathe.transforms.progress import Progress, part_of

TIMED_DOCUMENTS = 64
"""Number of documents that are encoded to measure how long the encoder takes for one."""

ENCODED, FITTED = 0.2, 0.3
"""Progress once the base encoder has encoded all texts, and once all candidates without training are measured."""


@dataclass(frozen=True)
class AdaptationResult:
    """All trials of an adaptation, and the one that is recommended.

    Attributes:
        request: what was asked.
        encoder: the base encoder.
        searches: judged searches, divided.
        floats: trials with float vectors, the cheapest first.
        coded: trials with byte codes of the requested size; empty if none were requested.
        recommended: the trial that is recommended, one of `coded` if there are any.
        trained: spec of the trained encoder by the name of the candidate; its folder exists while the workspace does.
        seconds_per_document: seconds that the base encoder takes for a document; 0 if no encoder may be trained.
        out_of_domain: texts of other domains, which a chain is certified with.
    """

    request: AdaptRequest
    encoder: TextEncoder
    searches: JudgedSearches
    floats: list[Trial]
    coded: list[Trial]
    recommended: Trial
    trained: dict[str, EncoderSpec]
    seconds_per_document: float
    out_of_domain: OutOfDomainTexts

    @property
    def trials(self) -> list[Trial]:
        """All trials: those with float vectors first, then those with byte codes."""
        return [*self.floats, *self.coded]

    @property
    def is_certain(self) -> bool:
        """Whether the recommendation is certain to help.

        That is so if the vectors are to stay as they are, apart from byte codes, or if both of these are positive over
        their whole 95 % intervals: what the recommended trial gains on the queries to report on, and what
        `cross_validate` says that choosing gains. Both are differences to unchanged vectors of the same bytes. It is
        also true if nothing was measured.
        """
        unchanged = (self.coded or self.floats)[0]
        if self.recommended.candidate is AS_IS or unchanged.relevance is None:
            return True
        own = compare(self.recommended.measured_relevance.report, unchanged.relevance.report)
        return own.sign > 0 and cross_validate(self.coded or self.floats, unchanged.relevance).sign > 0

    @property
    def baseline(self) -> Trial:
        """The trial of the encoder's unchanged float vectors, to which all others are compared."""
        return self.floats[0]


@contextmanager
def try_candidates(
    request: AdaptRequest,
    encoder: TextEncoder,
    workspace: Path,
    on_progress: Progress,
    device: str | None = None,
    stores: VectorStores | None = None,
    on_work_folder: Callable[[Path], None] | None = None,
) -> Iterator[AdaptationResult]:
    """Try every candidate change that the request allows, and yield all trials with the recommended one.

    This is a context manager: the folders of trained encoders exist within its block. If the block raises, the process
    is killed or the request publishes nothing, the workspace stays, and the same request resumes: a training goes on
    from its last checkpoint, and nothing that is done is repeated.

    Args:
        request: what to adapt, to which searches. Files in it are read here.
        encoder: the encoder.
        workspace: folder for the workspace folders.
        on_progress: called with progress in [0, 1] and a message.
        device: torch device of training; None for the best there is.
        stores: where vectors of a trained encoder are stored; None stores none.
        on_work_folder: called with the workspace folder, below which trainings write.

    Raises:
        FitError: as `AdaptRequest.check`, or if the texts are not what is needed.
        SourceError: if a file cannot be read.
        EncoderError: if the encoder fails on a text.
    """
    request.check()
    on_progress(0.0, "reading documents and judged queries")
    searches = read_searches(request)
    # All that trainings depend on: other texts, another division or seed, or another encoder get another folder.
    key = (
        "adapt-"
        + digest(
            encoder.vectors_key,
            searches.documents,
            [part.documents for part in (searches.learn, searches.choose, searches.report)],
            request.folders,
            request.seed,
        )[:32]
    )
    with claim_workspace_folder(workspace, key, keep=request.name is None) as folder:
        if on_work_folder is not None:
            on_work_folder(folder)
        sources = list_built_in_corpora(request.source.path)
        out_of_domain = OutOfDomainTexts(sources, workspace / "out_of_domain")
        trials = _CandidateTrials(request, encoder, searches, out_of_domain, folder, device, stores, on_progress)
        yield trials.run()


class _CandidateTrials:
    """The trials of one adaptation: every candidate change, measured with float vectors and with byte codes.

    The arguments are as in `try_candidates`, with the texts and the workspace folder.

    Attributes:
        settings: settings of trainings; None while no encoder is to be trained.
        seconds_per_document: seconds that the encoder takes for a document; 0 while no encoder is to be trained.
    """

    def __init__(
        self,
        request: AdaptRequest,
        encoder: TextEncoder,
        searches: JudgedSearches,
        out_of_domain: OutOfDomainTexts,
        folder: Path,
        device: str | None,
        stores: VectorStores | None,
        on_progress: Progress,
    ) -> None:
        self.request = request
        self.encoder = encoder
        self.searches = searches
        self.out_of_domain = out_of_domain
        self.folder = folder
        self.device = device
        self.stores = stores
        self.on_progress = on_progress
        self.budget = Budget(request.budget, folder)
        self.trained: dict[str, EncoderSpec] = {}
        self.floats: list[Trial] = []
        self.coded: list[Trial] = []
        self.settings: TrainingSettings | None = None
        self.seconds_per_document = 0.0

    def run(self) -> AdaptationResult:
        """Try the candidates, cheapest first, and return all trials with the recommended one.

        With too few judged queries, nothing is tried and the vectors stay as they are.
        """
        if (problem := self.searches.shortage) is not None:
            self.floats = [self._skip(candidate, None, problem) for candidate in CANDIDATES]
            return self._finish(self.floats[0])

        vectors = encode_searches(self.searches, self.encoder, part_of(self.on_progress, 0.0, ENCODED))
        halves = encode_all_halves(self.out_of_domain, with_document_prompt(self.encoder))
        candidates = [candidate for candidate in CANDIDATES if candidate.training is None]
        for number, candidate in enumerate(candidates):
            done = ENCODED + (FITTED - ENCODED) * number / len(candidates)
            self.on_progress(done, f"trying to {candidate.label}")
            self._try_steps(candidate, vectors, halves)

        self._try_training()
        self.budget.save()
        trials = self.coded or self.floats
        return self._finish(choose_trial(trials))

    def _finish(self, recommended: Trial) -> AdaptationResult:
        return AdaptationResult(
            self.request,
            self.encoder,
            self.searches,
            self.floats,
            self.coded,
            recommended,
            self.trained,
            self.seconds_per_document,
            self.out_of_domain,
        )

    def _skip(self, candidate: Candidate, size: int | None, problem: str) -> Trial:
        """Return the trial of a candidate that is not tried, with the problem as the reason.

        `size` is the number of bytes of the candidate's codes, or None for floats.
        """
        return Trial(candidate, size, size or 4 * self.encoder.dimensions, None, problem=problem)

    def _skip_all(self, candidate: Candidate, problem: str) -> None:
        self.floats.append(self._skip(candidate, None, problem))
        if self.request.bytes is not None:
            self.coded.append(self._skip(candidate, self.request.bytes, problem))

    def _try_steps(self, candidate: Candidate, vectors: JudgedVectors, halves: dict[str, QueryPairs]) -> None:
        """Fit a candidate's transforms on the document vectors, and append trials of float vectors and of byte codes.

        Byte codes are tried if the request asks for them. If the transforms cannot be fitted, the candidate is recorded
        as not tried. Held-out documents, on which the published chain of transforms is certified, are searched but not
        fitted on.
        """
        begun = perf_counter()
        try:
            chain = Chain(parse_steps(candidate.steps) if candidate.steps else [])
            steps = [step for step in chain.transforms if isinstance(step, Transform)]
            pairs = vectors.learn if any(step.takes_pairs for step in steps) else None
            # Held-out documents stay out of the fit, because the published chain is certified on them.
            fitted = vectors.documents[self.searches.fit_rows]
            chain.fit(fitted, pairs=pairs)
        except InputError as error:
            self._skip_all(candidate, str(error))
            return
        seconds = perf_counter() - begun
        notes = tuple(note for step in steps for note in step.fit_warnings())
        self._measure(candidate, chain, None, vectors, halves, seconds, notes)

        if self.request.bytes is not None:
            size = self.request.bytes
            codes = build_steps([{"kind": CODES, "bytes": size}])[0].fit(chain.transform(fitted))
            coded = Chain([*chain.transforms, codes], chain.normalize)
            self._measure(candidate, coded, size, vectors, halves, perf_counter() - begun, notes)

    def _measure(
        self,
        candidate: Candidate,
        chain: Chain,
        size: int | None,
        vectors: JudgedVectors,
        halves: dict[str, QueryPairs],
        seconds: float,
        notes: tuple[str, ...],
    ) -> None:
        """Append a trial with nDCG@10 of held-out queries and of out-of-domain texts through a fitted chain.

        `size` is the number of bytes of the chain's codes, or None for floats.
        """

        def measure(pairs: QueryPairs) -> NDArray[np.float64]:
            # Documents are scored as they are decoded from storage, so that codes lose here what they lose in a search.
            return measure_relevance(pairs.map(chain.transform_queries, chain.floats))[0]

        out_of_domain = {name: measure(pairs) for name, pairs in halves.items()}
        relevance = Relevance(measure(vectors.choose), measure(vectors.report), out_of_domain, vectors.crossed)
        trials = self.floats if size is None else self.coded
        encode_seconds = self.seconds_per_document * self.searches.rows if candidate.encodes_again else 0.0
        vector_bytes = size or 4 * vectors.documents.shape[1]
        measured = MeasuredChain(chain, vectors, halves)
        trials.append(Trial(candidate, size, vector_bytes, relevance, measured, seconds, encode_seconds, None, notes))

    def _try_training(self) -> None:
        """Train an encoder for each candidate that asks for it, and measure the vectors of the trained encoder.

        Candidates that cannot be trained are recorded as not tried, with the reason.
        """
        candidates = [candidate for candidate in CANDIDATES if candidate.training is not None]
        obstacle = self._find_obstacle_to_all()
        if obstacle is None:
            # Evenly spaced, and encoded without the store: vectors that are stored already would take no time.
            documents = self.searches.documents[:: max(1, len(self.searches.documents) // TIMED_DOCUMENTS)]
            self.seconds_per_document = measure_seconds_per_document(without_store(self.encoder), documents)
            self.settings = choose_training_settings(self.encoder.spec)

        start = FITTED
        for number, candidate in enumerate(candidates, 1):
            end = FITTED + (1 - FITTED) * number / len(candidates)
            reason = obstacle or self._find_candidate_obstacle(candidate)
            if reason is not None:
                self._skip_all(candidate, reason)
            else:
                self._train_and_measure(candidate, part_of(self.on_progress, start, end))
            start = end

    def _find_obstacle_to_all(self) -> str | None:
        """Return the reason why no encoder can be trained in this adaptation, or None if training is possible."""
        if not self.request.train:
            return "the encoder is to stay as it is"
        count = len(self.searches.learn.documents)
        if count < MIN_QUERIES:
            return f"there are {count} queries to learn from, and {MIN_QUERIES} are needed: give {ALL_QUERIES} in all"
        return find_training_obstacle(self.encoder)

    def _find_candidate_obstacle(self, candidate: Candidate) -> str | None:
        """Return the reason why this candidate is not trained, or None if it is.

        The reasons are missing labelled folders and too little of the budget left.
        """
        if candidate.training == "folders and pairs" and not self.request.folders:
            return "no labelled folders were given"
        if self._count_affordable(candidate) < MIN_QUERIES:
            encode_seconds = self.seconds_per_document * len(self.searches.documents)
            seconds = self._seconds_each(candidate) * len(self.searches.learn.documents) + encode_seconds
            return f"it would take about {seconds:,.0f} s, and {max(self.budget.left, 0):,.0f} s of the budget are left"
        return None

    def _seconds_each(self, candidate: Candidate) -> float:
        """Return the estimated seconds that training a candidate's encoder takes for each query to learn from."""
        learn = self.searches.learn
        pairs = sum(map(len, learn.documents.values())) / max(len(learn.documents), 1)
        assert self.settings is not None  # chosen before any candidate is trained
        epochs = float(self.settings["epochs"]) + (FOLDER_EPOCHS if candidate.training == "folders and pairs" else 0.0)
        return self.seconds_per_document * PASSES * epochs * pairs

    def _count_affordable(self, candidate: Candidate) -> int:
        """Return how many queries a candidate may train on within the budget, as the first call decided."""
        count = len(self.searches.learn.documents)
        encode_seconds = self.seconds_per_document * len(self.searches.documents)
        return self.budget.decide_queries(candidate.name, count, self._seconds_each(candidate), encode_seconds)

    def _train_and_measure(self, candidate: Candidate, on_progress: Progress) -> None:
        """Train an encoder for a candidate, encode all judged searches with it, and append trials of the new vectors.

        The seconds of the trials include the training.
        """
        assert self.settings is not None  # chosen before any candidate is trained
        begun = perf_counter()
        trained = train_candidate(
            candidate,
            self.encoder,
            self.settings,
            self.searches,
            self.request.folders,
            self.folder / candidate.name,
            self.device,
            self.request.seed,
            part_of(on_progress, 0.0, 0.8),
            self._count_affordable(candidate),
        )
        seconds = self.budget.add_seconds(candidate.name, perf_counter() - begun)
        self.trained[candidate.name] = trained
        encoder = open_encoder(trained, self.device, self.stores)
        vectors = encode_searches(self.searches, encoder, part_of(on_progress, 0.8, 1.0))
        self._try_steps(candidate, vectors, encode_all_halves(self.out_of_domain, with_document_prompt(encoder)))
        # The trials know only how long the transforms were fitted: the training is added to both.
        for trials in (self.floats, self.coded):
            if trials:
                trials[-1] = replace(trials[-1], seconds=trials[-1].seconds + seconds)


def certify_recommended(
    result: AdaptationResult, encoder: TextEncoder, command: str | None, on_progress: Progress
) -> FittedChain | None:
    """Certify the chain of transforms that was measured in the recommended trial.

    It is certified on the documents that no step learned from and on the queries to report on.

    Args:
        result: the result.
        encoder: encoder of the vectors: the base encoder, or the published one of the recommended candidate.
        command: the user's command, for the provenance.
        on_progress: called with progress in [0, 1] and a message.

    Returns:
        The chain with its certificate, or None if the recommended trial has no transforms, or nothing was measured.
    """
    measured, request, searches = result.recommended.measured, result.request, result.searches
    if measured is None or not len(measured.chain):
        return None
    on_progress(0.0, "certifying the chain that was measured")
    encoder = with_document_prompt(encoder)  # as the documents were encoded
    chain, vectors = measured.chain, measured.vectors
    fitted, heldout = vectors.documents[searches.fit_rows], vectors.documents[searches.heldout_rows]
    written = request.source.path
    provenance = build_provenance(
        "texts" if written is None else open_source(written).name,
        rows=len(searches.documents),
        rows_digest=digest(searches.documents),
        seed=request.seed,
        command=command,
    )
    return certify_measured(
        chain,
        fitted,
        heldout,
        encoder,
        provenance,
        "an adaptation takes the default codes, as it measured them",
        out_of_domain=result.out_of_domain.encode(encoder, part_of(on_progress, 0.1, 0.5)),
        warnings=[note.rstrip(".") for note in (*searches.notes, *result.recommended.notes)],
        pairs=vectors.reported,
        out_of_domain_pairs=measured.halves,
    )
