"""Evaluation of `lathe evaluate` with methods that are fitted on the sentences of a corpus."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from lathe.training.encoder.spec import StoreSettings, VectorStores
from lathe.training.errors import EvaluationError, TrainingError
from lathe.training.evaluation.encoders import KEYS, EvaluatedEncoder, Member, TextVectors, text_key
from lathe.training.evaluation.run import EncoderResult, Evaluation, EvaluationResults, Request
from lathe.training.evaluation.suites import Entry
from lathe.training.evaluation.worker import TaskDescription
from lathe.training.workspace import lock_folder
from lathe.transforms.errors import TransformError
from lathe.transforms.progress import Progress
from research.fitted_methods.corpus import Corpus, read_corpus_sentences, split_corpus
from research.fitted_methods.method_cache import MethodCache
from research.fitted_methods.methods import (
    FittableMethod,
    label_method,
    list_debiasing_methods,
    list_reducer_methods,
    resolve_size,
)


@dataclass(frozen=True)
class FittedRequest(Request):
    """Request for an evaluation of fitted methods too.

    Attributes:
        corpus: source of sentences to fit on.
        ladder: whether the debiasing methods of the mean-bias paper are evaluated.
        sizes: sizes of the reducers: numbers of dimensions, or shares below 1.
    """

    corpus: str = "pydoc:"
    ladder: bool = False
    sizes: Sequence[Fraction] = ()

    def methods(self, dimensions: int) -> list[FittableMethod]:
        """List the methods to evaluate on an encoder with so many dimensions, the raw vectors first.

        Chains with their rescored and cut variants, debiasing methods, and reducers at each size follow.
        """
        sizes = list(
            dict.fromkeys(size for requested in self.sizes if (size := resolve_size(requested, dimensions)) is not None)
        )
        labelled = [label_method(method) for method in self.list_methods()]
        cut_chains = [chain.cut(size) for chain in labelled for size in sizes if chain.cuts_to(size)]
        debiasing = list_debiasing_methods() if self.ladder else []

        return [*labelled, *cut_chains, *debiasing, *list_reducer_methods(sizes)]

    @property
    def needs_corpus(self) -> bool:
        """Whether methods are fitted on the sentences of the corpus."""
        return bool(self.ladder or self.sizes)


@dataclass(frozen=True)
class FittedResult(EncoderResult):
    """Encoder with its fitted methods.

    Attributes:
        methods: successfully fitted methods, by name.
        mean_norm: ‖μ‖ of its unit vectors on the corpus; None without a corpus.
        intrinsic: intrinsic measures of reductions, by method.
    """

    methods: Mapping[str, FittableMethod]
    mean_norm: float | None = None
    intrinsic: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class FittedResults(EvaluationResults):
    """Results of an evaluation of fitted methods.

    Attributes:
        corpus_rows: number of sentences of the corpus, including held-out ones.
    """

    request: FittedRequest
    encoders: Sequence[FittedResult]
    corpus_rows: int = 0


def evaluate_fitted(request: FittedRequest, on_progress: Progress) -> FittedResults:
    """Score every method of every encoder on every task of the suite, as `lathe evaluate` does.

    Errors are those of `lathe.training.evaluation.run.evaluate`, and `SourceError` if the corpus cannot be read.
    """
    busy = EvaluationError(f"another evaluation is writing to {request.out.name}; name another folder with --out")
    with lock_folder(request.out, busy):
        return FittedEvaluation(request, on_progress).run()


class FittedEvaluation(Evaluation):
    """One run of an evaluation of fitted methods. Construction reads the corpus if methods need it.

    The vectors of all tasks stay in the output folder, `vectors/OUTPUT`, for what is measured afterwards.
    """

    request: FittedRequest

    def __init__(self, request: FittedRequest, on_progress: Progress) -> None:
        if request.stores is None:
            stores = VectorStores(StoreSettings(request.out / "upstream"), StoreSettings(request.out / "encoded"))
            request = replace(request, stores=stores)
        super().__init__(request, on_progress)
        self.cache = MethodCache(request.out / "methods")
        self.sentences = read_corpus_sentences(request.corpus) if request.needs_corpus else []
        self.digest = hashlib.sha256("\0".join(self.sentences).encode(errors="surrogatepass")).hexdigest()

    def run(self) -> FittedResults:
        """Evaluate one encoder after another, and return all results."""
        return FittedResults(**vars(super().run()), corpus_rows=len(self.sentences))

    def list_methods(self, member: Member) -> Sequence[FittableMethod]:
        """List the methods to evaluate on an encoder, with their keys."""
        return [method.on(member.output, self.digest) for method in self.request.methods(member.dimensions)]

    @contextmanager
    def open_folder(self, member: Member) -> Iterator[Path]:
        """Yield the folder of an encoder's vectors, which stays."""
        yield self.request.out / "vectors" / member.output

    def is_finished(self, entry: Entry, member: Member) -> bool:
        """Return whether all tasks have all their scores, and the vectors are there.

        Otherwise all tasks are read again, so that the vectors of all are written.
        """
        written = (self.request.out / "vectors" / member.output / KEYS).exists()
        return written and all(super(FittedEvaluation, self).is_finished(one, member) for one in self.entries)

    def encode(self, encoder: EvaluatedEncoder, asked: Sequence[tuple[str | None, str]], folder: Path) -> TextVectors:
        """Return the vectors of (prompt name, text) pairs, from the folder if it has all of them."""
        if (folder / KEYS).exists():
            vectors = TextVectors.open(folder, encoder.member.dimensions)
            if all(text_key(text, encoder.member.prompt(name)) in vectors for name, text in asked):
                return vectors
        return super().encode(encoder, asked, folder)

    def list_texts(self, tasks: Sequence[TaskDescription]) -> list[tuple[str | None, str]]:
        """List the distinct (prompt name, text) pairs of the tasks and the corpus."""
        return [*super().list_texts(tasks), *((None, sentence) for sentence in self.sentences)]

    def prepare_methods(self, member: Member, vectors: TextVectors) -> FittedResult:
        """Fit every method on the vectors of one encoder's corpus, or load it from the cache.

        Methods that do not suit the encoder or cannot be fitted, and sizes that it cannot be reduced to, are left out,
        with their reason in the result's `problems`.
        Returns the encoder's result, still without scores.
        """
        corpus: Corpus | None = None
        if self.sentences:
            keys = [text_key(sentence, member.prompt(None)) for sentence in self.sentences]
            corpus = split_corpus(vectors.get(keys), self.digest)

        requested = self.list_methods(member)
        # A chain of another encoder, or of other dimensions, is no error: it is left out with its reason.
        reasons = {method.name: method.unsuited_reason(member.fingerprint, member.dimensions) for method in requested}
        methods = [method for method in requested if reasons[method.name] is None]
        problems = {m.name: reason for m in requested if (reason := reasons[m.name]) and m.group != "rescored"}

        for size in (size for size in self.request.sizes if resolve_size(size, member.dimensions) is None):
            problems[f"size {size}"] = f"it is not below the {member.dimensions} dimensions there are"

        fitted: dict[str, FittableMethod] = {}
        measures: dict[str, Mapping[str, float]] = {}
        for method in methods:

            def report(message: str) -> None:
                self.progress.report("encode", 1.0, f"{message} on {member.name}")

            try:
                fitted_method, intrinsic = self.cache.load_or_fit(method, member.output, corpus, report)
            except (TransformError, TrainingError) as error:
                problems[method.name] = str(error)
                continue

            fitted[method.name] = fitted_method
            if intrinsic:
                measures[method.name] = intrinsic

        norm = corpus.mean_norm if corpus else None
        return FittedResult(member, fitted, problems, norm, measures)
