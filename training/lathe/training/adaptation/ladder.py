"""The ladder: each change is made and measured on held-out queries, and the cheapest that is not beaten is recommended.

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

from lathe.training.adaptation.request import AdaptRequest
from lathe.training.adaptation.searches import (
    ALL_QUERIES,
    JudgedSearches,
    JudgedVectors,
    encode_searches,
    read_searches,
)
from lathe.training.adaptation.training import (
    FOLDER_EPOCHS,
    PASSES,
    Trainer,
    choose_trainer,
    find_obstacle,
    measure_rate,
    train_rung,
)
from lathe.training.adaptation.trial import (
    AS_IS,
    RUNGS,
    Budget,
    MeasuredChain,
    Relevance,
    Rung,
    Trial,
    choose_trial,
    cross_validate,
)
from lathe.training.comparison import compare
from lathe.training.digests import digest
from lathe.training.encoder.opening import open_encoder, without_store
from lathe.training.encoder.spec import EncoderSpec, VectorStores
from lathe.training.encoder.text_encoder import TextEncoder, with_document_prompt
from lathe.training.fitting.code_search import keep_default
from lathe.training.fitting.fit import build_provenance, list_training_logs
from lathe.training.fitting.fit_state import FittedChain
from lathe.training.fitting.out_of_domain import OutOfDomainTexts, list_built_in_corpora
from lathe.training.fitting.pairs import encode_all_halves
from lathe.training.fitting.requests import CODES
from lathe.training.sources.source import open_source
from lathe.training.workspace import claim_workspace_folder
from lathe.transforms.artifact import FitDistribution
from lathe.transforms.base import QueryPairs, Transform, measure_relevance
from lathe.transforms.chain import Chain, build_steps, parse_steps, retained_subspace
from lathe.transforms.errors import InputError
from lathe.transforms.learned.query_adapter import MIN_QUERIES
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.quality import certify

PROBES = 64
"""Number of documents on which the rate of the encoder is measured."""

ENCODED, FITTED = 0.2, 0.3
"""Progress once the base encoder has encoded all texts, and once all rungs without training are measured."""


@dataclass(frozen=True)
class Ladder:
    """Result of an adaptation.

    Attributes:
        request: what was asked.
        encoder: the base encoder.
        searches: judged searches, divided.
        floats: trials with floats as they are stored without codes, the cheapest first.
        coded: trials with codes of the requested bytes; empty if none were requested.
        recommended: the trial that is recommended, one of `coded` if there are any.
        trained: spec of the trained encoder by the name of the rung; its folder exists while the workspace does.
        rate: seconds that the base encoder takes for a document.
        out_of_domain: texts of other domains, which a chain is certified with.
    """

    request: AdaptRequest
    encoder: TextEncoder
    searches: JudgedSearches
    floats: list[Trial]
    coded: list[Trial]
    recommended: Trial
    trained: dict[str, EncoderSpec]
    rate: float
    out_of_domain: OutOfDomainTexts

    @property
    def trials(self) -> list[Trial]:
        """All trials: with floats first, then with codes."""
        return [*self.floats, *self.coded]

    @property
    def is_certain(self) -> bool:
        """Whether what is recommended gains beyond its interval on the queries to report on, compared with unchanged
        vectors of the same bytes, and choosing it does; or whether it is that: codes alone save bytes, and promise no
        gain.
        """
        unchanged = (self.coded or self.floats)[0]
        if self.recommended.rung is AS_IS or unchanged.relevance is None:
            return True
        own = compare(self.recommended.require_relevance().report, unchanged.relevance.report)
        return own.sign > 0 and cross_validate(self.coded or self.floats, unchanged.relevance).sign > 0

    @property
    def baseline(self) -> Trial:
        """The encoder's own floats, to which all trials are compared."""
        return self.floats[0]


@contextmanager
def climb_ladder(
    request: AdaptRequest,
    encoder: TextEncoder,
    workspace: Path,
    on_progress: Progress,
    device: str | None = None,
    stores: VectorStores | None = None,
    on_work_folder: Callable[[Path], None] | None = None,
) -> Iterator[Ladder]:
    """Try every rung that the request allows, and yield the ladder with the recommended one. Trained encoders exist
    within the block.

    If the block raises, the process is killed or the request publishes nothing, the workspace stays, and the same
    request resumes: a training goes on from its last checkpoint, and nothing that is done is repeated.

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
        climb = _Climb(request, encoder, searches, out_of_domain, folder, device, stores, on_progress)
        yield climb.run()


class _Climb:
    """One climb of the ladder.

    The arguments are those of `climb_ladder`, with the texts and the workspace folder.

    Attributes:
        trainer: settings of trainings; None while no encoder is to be trained.
        rate: seconds that the encoder takes for a document; 0 while no encoder is to be trained.
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
        self.trainer: Trainer | None = None
        self.rate = 0.0

    def run(self) -> Ladder:
        """Try the rungs, cheapest first, and return the ladder with the recommended one."""
        if self.searches.shortage is not None:
            return self._give_up(self.searches.shortage)

        vectors = encode_searches(self.searches, self.encoder, part_of(self.on_progress, 0.0, ENCODED))
        halves = encode_all_halves(self.out_of_domain, with_document_prompt(self.encoder))
        rungs = [rung for rung in RUNGS if rung.training is None]
        for number, rung in enumerate(rungs):
            done = ENCODED + (FITTED - ENCODED) * number / len(rungs)
            self.on_progress(done, f"trying to {rung.label}")
            self._try_steps(rung, vectors, halves)

        self._try_training()
        self.budget.save()
        trials = self.coded or self.floats
        return self._finish(choose_trial(trials))

    def _give_up(self, problem: str) -> Ladder:
        """Return a ladder on which nothing was tried, which leaves the vectors as they are."""
        self.floats = [self._skip(rung, None, problem) for rung in RUNGS]
        return self._finish(self.floats[0])

    def _finish(self, recommended: Trial) -> Ladder:
        return Ladder(
            self.request,
            self.encoder,
            self.searches,
            self.floats,
            self.coded,
            recommended,
            self.trained,
            self.rate,
            self.out_of_domain,
        )

    def _skip(self, rung: Rung, size: int | None, problem: str) -> Trial:
        """Return the trial of a rung that is not tried, with the reason."""
        return Trial(rung, size, size or 4 * self.encoder.dimensions, None, problem=problem)

    def _skip_all(self, rung: Rung, problem: str) -> None:
        """Add a rung that is not tried, with floats and with codes."""
        self.floats.append(self._skip(rung, None, problem))
        if self.request.bytes is not None:
            self.coded.append(self._skip(rung, self.request.bytes, problem))

    def _try_steps(self, rung: Rung, vectors: JudgedVectors, halves: dict[str, QueryPairs]) -> None:
        """Fit a rung's steps, and measure them alone and before codes.

        Documents that are held out, to certify what is published, teach neither steps nor codes. The queries search
        them too.

        Args:
            rung: the rung.
            vectors: judged searches by the base encoder, or by a trained one.
            halves: halves of out-of-domain texts by the same encoder.
        """
        begun = perf_counter()
        try:
            chain = Chain(parse_steps(rung.steps) if rung.steps else [])
            steps = [step for step in chain.transforms if isinstance(step, Transform)]
            pairs = vectors.learn if any(step.takes_pairs for step in steps) else None
            fitted = vectors.documents[self.searches.fit_rows]
            chain.fit(fitted, pairs=pairs)
        except InputError as error:
            self._skip_all(rung, str(error))
            return
        seconds = perf_counter() - begun
        notes = tuple(note for step in steps for note in step.fit_warnings())
        self._measure(rung, chain, None, vectors, halves, seconds, notes)

        if self.request.bytes is not None:
            size = self.request.bytes
            codes = build_steps([{"kind": CODES, "bytes": size}])[0].fit(chain.transform(fitted))
            coded = Chain([*chain.transforms, codes], chain.normalize)
            self._measure(rung, coded, size, vectors, halves, perf_counter() - begun, notes)

    def _measure(
        self,
        rung: Rung,
        chain: Chain,
        size: int | None,
        vectors: JudgedVectors,
        halves: dict[str, QueryPairs],
        seconds: float,
        notes: tuple[str, ...],
    ) -> None:
        """Measure a fitted chain on held-out queries and out of domain, and add the trial to the ladder."""

        def measure(pairs: QueryPairs) -> NDArray[np.float64]:
            return measure_relevance(pairs.map(chain.transform_queries, chain.floats))[0]

        out_of_domain = {name: measure(pairs) for name, pairs in halves.items()}
        relevance = Relevance(measure(vectors.choose), measure(vectors.report), out_of_domain, vectors.crossed)
        trials = self.floats if size is None else self.coded
        encode_seconds = self.rate * self.searches.rows if rung.encodes_again else 0.0
        vector_bytes = size or 4 * vectors.documents.shape[1]
        measured = MeasuredChain(chain, vectors, halves)
        trials.append(Trial(rung, size, vector_bytes, relevance, measured, seconds, encode_seconds, None, notes))

    def _try_training(self) -> None:
        """Train the encoder on each rung that says so, and measure its vectors."""
        rungs = [rung for rung in RUNGS if rung.training is not None]
        obstacle = self._find_obstacle()
        if obstacle is None:
            probes = self.searches.documents[:: max(1, len(self.searches.documents) // PROBES)]
            self.rate = measure_rate(without_store(self.encoder), probes)
            self.trainer = choose_trainer(self.encoder.spec)

        start = FITTED
        for number, rung in enumerate(rungs, 1):
            end = FITTED + (1 - FITTED) * number / len(rungs)
            reason = obstacle or self._find_rung_obstacle(rung)
            if reason is not None:
                self._skip_all(rung, reason)
            else:
                self._train_and_measure(rung, part_of(self.on_progress, start, end))
            start = end

    def _find_obstacle(self) -> str | None:
        """Return why no encoder is trained, or None if one may be."""
        if not self.request.train:
            return "the encoder is to stay as it is"
        count = len(self.searches.learn.documents)
        if count < MIN_QUERIES:
            return f"there are {count} queries to learn from, and {MIN_QUERIES} are needed: give {ALL_QUERIES} in all"
        return find_obstacle(self.encoder.spec)

    def _find_rung_obstacle(self, rung: Rung) -> str | None:
        """Return why a rung is not trained although others may be, or None if it is."""
        if rung.training == "folders and pairs" and not self.request.folders:
            return "no labelled folders were given"
        if self._count_affordable(rung) < MIN_QUERIES:
            encode_seconds = self.rate * len(self.searches.documents)
            seconds = self._seconds_each(rung) * len(self.searches.learn.documents) + encode_seconds
            return f"it would take about {seconds:,.0f} s, and {max(self.budget.left, 0):,.0f} s of the budget are left"
        return None

    def _seconds_each(self, rung: Rung) -> float:
        """Return the estimated seconds of a rung's training for each query to learn from."""
        learn = self.searches.learn
        pairs = sum(map(len, learn.documents.values())) / max(len(learn.documents), 1)
        assert self.trainer is not None  # chosen before any rung is trained
        epochs = float(self.trainer["epochs"]) + (FOLDER_EPOCHS if rung.training == "folders and pairs" else 0.0)
        return self.rate * PASSES * epochs * pairs

    def _count_affordable(self, rung: Rung) -> int:
        """Return the number of queries that the budget allows a rung to train on."""
        count = len(self.searches.learn.documents)
        encode_seconds = self.rate * len(self.searches.documents)
        return self.budget.decide_queries(rung.name, count, self._seconds_each(rung), encode_seconds)

    def _train_and_measure(self, rung: Rung, on_progress: Progress) -> None:
        """Train a rung's encoder, encode all texts with it, and measure its vectors."""
        assert self.trainer is not None  # chosen before any rung is trained
        begun = perf_counter()
        trained = train_rung(
            rung,
            self.encoder,
            self.trainer,
            self.searches,
            self.request.folders,
            self.folder / rung.name,
            self.device,
            self.request.seed,
            part_of(on_progress, 0.0, 0.8),
            self._count_affordable(rung),
        )
        seconds = self.budget.add_seconds(rung.name, perf_counter() - begun)
        self.trained[rung.name] = trained
        encoder = open_encoder(trained, self.device, self.stores)
        vectors = encode_searches(self.searches, encoder, part_of(on_progress, 0.8, 1.0))
        self._try_steps(rung, vectors, encode_all_halves(self.out_of_domain, with_document_prompt(encoder)))
        for trials in (self.floats, self.coded):
            if trials:
                trials[-1] = replace(trials[-1], seconds=trials[-1].seconds + seconds)


def certify_recommended(
    ladder: Ladder, encoder: TextEncoder, command: str | None, on_progress: Progress
) -> FittedChain | None:
    """Certify the chain that the ladder recommends, as it was measured, on the documents that no step learned from and
    on the queries to report on. Returns the chain with its certificate, or None if nothing is to be applied to vectors.

    Args:
        ladder: the ladder.
        encoder: encoder of the vectors: the base encoder, or the published one of the recommended rung.
        command: the user's command, for the provenance.
        on_progress: called with progress in [0, 1] and a message.
    """
    measured, request, searches = ladder.recommended.measured, ladder.request, ladder.searches
    if measured is None or not len(measured.chain):
        return None
    on_progress(0.0, "certifying the chain that was measured")
    encoder = with_document_prompt(encoder)  # as the documents were encoded
    chain, vectors = measured.chain, measured.vectors
    fitted, heldout = vectors.documents[searches.fit_rows], vectors.documents[searches.heldout_rows]
    certificate = certify(
        chain,
        heldout,
        n_fit=len(fitted),
        seed=request.seed,
        out_of_domain=ladder.out_of_domain.encode(encoder, part_of(on_progress, 0.1, 0.5)),
        warnings=[note.rstrip(".") for note in (*searches.notes, *ladder.recommended.notes)],
        pairs=vectors.reported,
        out_of_domain_pairs=measured.halves,
    )
    if "codes" in certificate:
        reason = "an adaptation takes the default codes, as it measured them"
        certificate["codes"] |= keep_default(chain, reason).describe()
    written = request.source.path
    chain.metadata = {
        "encoder": encoder.describe(),
        "target_encoder": None,
        "provenance": build_provenance(
            "texts" if written is None else open_source(written).name,
            rows=len(searches.documents),
            rows_digest=digest(searches.documents),
            seed=request.seed,
            command=command,
        )
        | {"training": list_training_logs(chain)},
        "certificate": certificate,
    }
    distribution = FitDistribution.measure(fitted, heldout, retained_subspace(chain))
    return FittedChain(chain, distribution, certificate, [])
