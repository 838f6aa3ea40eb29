"""Run of an evaluation, from suite to scores, which resumes a stopped one.

OUT/
├── vectors/       raw vectors of each encoder                      store.py
├── methods/       fitted methods and their intrinsic measures      method_cache.py
├── tasks.jsonl    descriptions of the tasks                        scores.py
├── scores.jsonl   results log: a line for each task, encoder and method   scores.py
└── evaluation.json, scores.csv, report.html                        report.py
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from lathe.training.digests import digest
from lathe.training.encoder.spec import VectorStores
from lathe.training.errors import EncoderError, EvaluationError, TrainingError
from lathe.training.evaluation.corpus import Corpus, read_corpus_sentences, split_corpus
from lathe.training.evaluation.encoders import EvaluatedEncoder, Member, RequestedEncoder
from lathe.training.evaluation.method_cache import MethodCache
from lathe.training.evaluation.methods import (
    Method,
    build_control_method,
    list_debiasing_methods,
    list_reducer_methods,
    resolve_size,
)
from lathe.training.evaluation.pool import Workers
from lathe.training.evaluation.progress import StagedProgress
from lathe.training.evaluation.scores import ResultsLog, Score, TaskDescription
from lathe.training.evaluation.store import VectorStore, text_key
from lathe.training.evaluation.suites import Entry, Suite
from lathe.training.evaluation.worker import FittedMethod, Raw, Trial, collect_texts, score_methods
from lathe.training.workspace import lock_folder
from lathe.transforms.errors import TransformError
from lathe.transforms.progress import Progress

ENCODE_ROWS = 4096
"""Number of texts that are encoded between two writes to disk."""


@dataclass(frozen=True)
class Request:
    """Request for an evaluation.

    Attributes:
        suite: data sets.
        encoders: encoders, at least one.
        out: output folder.
        corpus: source of sentences to fit on.
        chains: fitted chains to evaluate.
        ladder: whether the debiasing methods of the mean-bias paper are evaluated.
        sizes: sizes of the reducers: numbers of dimensions, or shares below 1.
        limit: maximum number of rows of a data set; None for all.
        processes: number of scoring processes.
        device: torch device of the encoders; None for the default.
        stores: where vectors are stored, and read instead of being computed again; None stores none.
    """

    suite: Suite
    encoders: Sequence[RequestedEncoder]
    out: Path
    corpus: str = "pydoc:"
    chains: Sequence[Method] = ()
    ladder: bool = False
    sizes: Sequence[Fraction] = ()
    limit: int | None = None
    processes: int = 1
    device: str | None = None
    stores: VectorStores | None = None

    def methods(self, dimensions: int) -> list[Method]:
        """List the methods to evaluate on an encoder with so many dimensions, the raw vectors first.
        Chains with their rescored and cut variants, debiasing methods, and reducers at each size follow.
        """
        sizes = list(
            dict.fromkeys(size for requested in self.sizes if (size := resolve_size(requested, dimensions)) is not None)
        )
        cut_chains = [chain.cut(size) for chain in self.chains for size in sizes if chain.cuts_to(size)]
        debiasing = list_debiasing_methods() if self.ladder else []

        return [
            build_control_method(),
            *self.chains,
            *(chain.rescored() for chain in self.chains if chain.compresses),
            *cut_chains,
            *debiasing,
            *list_reducer_methods(sizes),
        ]

    @property
    def needs_corpus(self) -> bool:
        """Whether methods are fitted on the sentences of the corpus."""
        return bool(self.ladder or self.sizes)


@dataclass(frozen=True)
class EncoderResult:
    """Encoder with its methods.

    The scores are in `Results`.

    Attributes:
        member: description of the encoder.
        mean_norm: ‖μ‖ of its unit vectors on the corpus; None without a corpus.
        methods: successfully fitted methods, by name.
        intrinsic: intrinsic measures of reductions, by method.
        problems: reasons why methods could not be evaluated, by name.
    """

    member: Member
    mean_norm: float | None
    methods: Mapping[str, Method]
    intrinsic: Mapping[str, Mapping[str, float]]
    problems: Mapping[str, str]


@dataclass(frozen=True)
class Results:
    """Results of an evaluation.

    Attributes:
        request: the request.
        tasks: description of each task; failed ones have an error.
        encoders: results by encoder, in the order requested.
        scores: scores of the requested tasks, encoders and methods.
        corpus_rows: number of sentences of the corpus, including held-out ones.
        problems: messages on encoders that could not be used.
    """

    request: Request
    tasks: Sequence[TaskDescription]
    encoders: Sequence[EncoderResult]
    scores: Sequence[Score]
    corpus_rows: int
    problems: Sequence[str] = ()


def evaluate(request: Request, on_progress: Progress) -> Results:
    """Score every method of every encoder on every task of the suite, and return all results.
    Intermediate results are written to `request.out`.

    Work that an earlier run finished is not repeated. A task, method or encoder that fails does not stop the others;
    its problem is part of the results.

    Args:
        request: what to evaluate, and the output folder.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        EvaluationError: if another process evaluates in the same folder, or no data set can be evaluated.
        EncoderError: if no encoder can be used.
        SourceError: if the corpus cannot be read.
    """
    busy = EvaluationError(f"another evaluation is writing to {request.out.name}; name another folder with --out")
    with lock_folder(request.out, busy):
        return Evaluation(request, on_progress).run()


class Evaluation:
    """One run of an evaluation, which scores every method on every task, with all that it has found so far.

    Construction reads the results log and, if methods need one, the corpus. It raises `EvaluationError` if two encoders
    have the same name.

    Args:
        request: what to evaluate.
        on_progress: called with progress in [0, 1] and a message.
    """

    def __init__(self, request: Request, on_progress: Progress) -> None:
        self.request = request
        self.progress = StagedProgress(on_progress)
        self.log = ResultsLog(request.out)
        self.cache = MethodCache(request.out / "methods")
        self.trials = [
            Trial(entry, compute_trial_key(entry, request.limit), request.limit) for entry in request.suite.entries
        ]
        self.sentences = read_corpus_sentences(request.corpus) if request.needs_corpus else []
        self.digest = hashlib.sha256("\0".join(self.sentences).encode(errors="surrogatepass")).hexdigest()
        self.tasks: dict[str, TaskDescription] = self.log.read_tasks()
        self.collected: dict[tuple[tuple[str, str], ...], dict[str, TaskDescription]] = {}
        self.problems: list[str] = []
        _require_distinct_names(request.encoders)

    def run(self) -> Results:
        """Evaluate one encoder after another, so that only one is in memory at a time, and return all results.

        An encoder that cannot be loaded or cannot encode is left out and named in `problems`.

        Raises:
            EncoderError: if no encoder can be used.
            EvaluationError: if no data set can be evaluated.
        """
        results: list[EncoderResult] = []
        self.progress.encoders = len(self.request.encoders)
        with Workers(self.request.processes) as workers:
            for number, requested in enumerate(self.request.encoders):
                self.progress.begin_encoder(number)
                try:
                    results.append(self.run_encoder(requested.open(self.request.device, self.request.stores), workers))
                except EncoderError as error:  # one of many must not stop the others
                    self.problems.append(str(error))

        if not results:
            raise EncoderError("; ".join(self.problems))

        self.progress.on_progress(1.0, "evaluated")
        return Results(
            self.request,
            self.list_tasks(),
            results,
            list(self.select_scores(results)),
            len(self.sentences),
            self.problems,
        )

    def select_scores(self, encoders: Sequence[EncoderResult]) -> Iterator[Score]:
        """Yield the scores in the results log that belong to this request and the given encoders.
        Each score gets the names of task, encoder and method that this request uses.
        """
        for trial in self.trials:
            for result in encoders:
                for method in result.methods.values():
                    key = method.key_on(result.member.output, self.digest)
                    score = self.log.by_cell.get((trial.key, result.member.output, key))
                    if score is not None:
                        name = result.member.name
                        yield replace(score, task=trial.entry.name, encoder=name, method=method.name)

    def run_encoder(self, encoder: EvaluatedEncoder, workers: Workers) -> EncoderResult:
        """Evaluate one encoder: collect and encode the tasks' texts, fit the methods, and score them on the tasks.
        Return the encoder's methods, intrinsic measures and problems, while the scores go to the results log.

        Descriptions of tasks, vectors, methods and scores are written to the output folder. Tasks that have all their
        scores are not read again.

        Raises:
            EncoderError: if the encoder cannot encode the texts.
            EvaluationError: if no data set can be evaluated.
        """
        member = encoder.member
        unfinished = [trial for trial in self.trials if not self.is_finished(trial, member)]
        collected = self.collect(unfinished, dict(member.prompts), workers)
        self.tasks |= {trial.key: task for trial, task in zip(unfinished, collected, strict=True)}
        usable = [task for task in collected if task.error is None]
        if unfinished == self.trials and not usable:
            problems = [f"{task.task}: {task.error}" for task in self.list_tasks()]
            raise EvaluationError("no data set can be evaluated: " + "; ".join(problems))

        prompted_texts = dict.fromkeys(pair for task in usable for pair in task.asked)
        store = self.open_store(member)
        self.encode(encoder, store, [*prompted_texts, *((None, sentence) for sentence in self.sentences)])
        result, fitted = self.fit(member, store)
        self.score(result, store, fitted, {task.key: task.type for task in usable}, workers)

        return result

    def open_store(self, member: Member) -> VectorStore:
        """Open the store of an encoder's vectors in the output folder."""
        return VectorStore(self.request.out / "vectors" / member.output, member.dimensions)

    def is_finished(self, trial: Trial, member: Member) -> bool:
        """Return whether the results log has a score of every suitable method for this task and encoder.
        Then the task need not be read again.
        """
        return trial.key in self.tasks and all(
            self.log.has_score((trial.key, member.output, method.key_on(member.output, self.digest)))
            for method in self.request.methods(member.dimensions)
            if method.unsuited_reason(member.fingerprint, member.dimensions) is None
            and method.suits_task(self.tasks[trial.key].type)
        )

    def list_tasks(self) -> list[TaskDescription]:
        """Return the description of every task of the suite, in its order.
        A description with an error follows for each data set that could not be read.
        """
        unread = [TaskDescription(name, "", error=why) for name, why in self.request.suite.problems.items()]
        return [*(self.tasks[trial.key] for trial in self.trials), *unread]

    def collect(self, trials: Sequence[Trial], prompts: dict[str, str], workers: Workers) -> list[TaskDescription]:
        """Return the description of each task, with the texts that it encodes under these prompts.
        Tasks that are not cached are run on random vectors in the workers.

        Results are cached in memory. New tasks without an error are appended to the log of tasks; failed ones have an
        error.
        """
        known = self.collected.setdefault(tuple(sorted(prompts.items())), {})
        new = [trial for trial in trials if trial.key not in known]
        for done, (index, result) in enumerate(workers.run([(collect_texts, (trial, prompts)) for trial in new]), 1):
            trial = new[index]
            failed = isinstance(result, Exception)
            known[trial.key] = TaskDescription(trial.entry.name, trial.key, error=str(result)) if failed else result
            self.progress.report("collect", done / len(new), f"read {trial.entry.name}")

        # A failed task is not logged, so that a later run reads it again.
        unlogged = [known[trial.key] for trial in new if trial.key not in self.tasks]
        self.log.add_tasks(description for description in unlogged if description.error is None)
        return [known[trial.key] for trial in trials]

    def encode(self, encoder: EvaluatedEncoder, store: VectorStore, asked: Sequence[tuple[str | None, str]]) -> None:
        """Encode those of the (prompt name, text) pairs in `asked` that the store lacks.
        Their vectors are appended to the store in blocks of `ENCODE_ROWS`.

        Raises:
            EncoderError: if the encoder fails, or returns NaN or inf.
        """
        member = encoder.member
        # Reversed: of texts with the same key, the first names the prompt.
        by_key = {text_key(text, member.prompt(name)): (name, text) for name, text in reversed(asked)}
        missing = [(key, *pair) for key, pair in by_key.items() if key not in store]
        done = 0

        for prompt in dict.fromkeys(name for _, name, _ in missing):
            pairs = [(key, text) for key, name, text in missing if name == prompt]
            for start in range(0, len(pairs), ENCODE_ROWS):
                keys, texts = zip(*pairs[start : start + ENCODE_ROWS], strict=True)

                def report(rows: int, before: int = done) -> None:
                    sentence = f"{before + rows:,} of {len(missing):,} texts encoded by {member.name}"
                    self.progress.report("encode", (before + rows) / len(missing), sentence)

                store.add(keys, encoder.encode(texts, prompt, report))
                done += len(texts)

    def fit(self, member: Member, store: VectorStore) -> tuple[EncoderResult, list[FittedMethod]]:
        """Fit every method on the vectors of one encoder's corpus, or load it from the cache.
        Return the encoder's result, still without scores, and references to the fitted methods.

        The vectors of the corpus must be in the store. Methods that do not suit the encoder or cannot be fitted, and
        sizes that it cannot be reduced to, are left out, with their reason in the result's `problems`.
        """
        corpus: Corpus | None = None
        if self.sentences:
            keys = [text_key(sentence, member.prompt(None)) for sentence in self.sentences]
            corpus = split_corpus(store.get(keys), self.digest)

        requested = self.request.methods(member.dimensions)
        # A chain of another encoder, or of other dimensions, is no error: it is left out with its reason.
        reasons = {method.name: method.unsuited_reason(member.fingerprint, member.dimensions) for method in requested}
        methods = [method for method in requested if reasons[method.name] is None]
        problems = {m.name: reason for m in requested if (reason := reasons[m.name]) and m.group != "rescored"}

        for size in (size for size in self.request.sizes if resolve_size(size, member.dimensions) is None):
            problems[f"size {size}"] = f"it is not below the {member.dimensions} dimensions there are"

        fitted, measures = [], {}
        for done, method in enumerate(methods):

            def report(message: str, done: int = done) -> None:
                self.progress.report("fit", done / len(methods), f"{message} on {member.name}")

            try:
                fitted_method, intrinsic = self.cache.load_or_fit(method, member.output, corpus, self.digest, report)
            except (TransformError, TrainingError) as error:
                problems[method.name] = str(error)
                continue

            fitted.append(fitted_method)
            if intrinsic:
                measures[method.name] = intrinsic

        norm = corpus.mean_norm if corpus else None
        working = {method.name: method for method in methods if method.name not in problems}
        return EncoderResult(member, norm, working, measures, problems), fitted

    def score(
        self,
        encoder: EncoderResult,
        store: VectorStore,
        fitted: Sequence[FittedMethod],
        usable: Mapping[str, str],
        workers: Workers,
    ) -> None:
        """Score an encoder's fitted methods on all usable tasks in the worker processes.
        Scores that the results log has already are skipped, new ones are appended to it, and nothing is returned.

        A cell is one task, encoder and method; failed cells get a score with an error. Cells of one task follow each
        other, so that a process loads the task once.

        Args:
            encoder: the encoder with its methods.
            store: its vectors.
            fitted: its fitted methods.
            usable: types of the tasks that can be evaluated, by key.
            workers: process pool.
        """
        member = encoder.member
        prompts = dict(member.prompts), member.default_prompt
        raw = Raw(member.name, member.output, member.dimensions, *prompts, store.folder)
        jobs = []

        # Methods of one task in one job, so that a process loads the task once.
        for trial in (trial for trial in self.trials if trial.key in usable):
            suited = [m for m in fitted if encoder.methods[m.name].suits_task(usable[trial.key])]
            unscored = [m for m in suited if not self.log.has_score((trial.key, member.output, m.key))]
            if unscored:
                jobs.append((score_methods, (trial, raw, unscored)))

        for done, (index, result) in enumerate(workers.run(jobs), 1):
            trial, _, unscored = jobs[index][1]
            if isinstance(result, Exception):
                cells = [(trial.entry.name, trial.key, raw.name, raw.fingerprint, m.name, m.key) for m in unscored]
                result = [Score(*cell, None, error=str(result)) for cell in cells]
            self.log.add(result)
            self.progress.report(
                "score", done / len(jobs), f"{done:,} of {len(jobs):,}: {trial.entry.name} on {raw.name}"
            )


def _require_distinct_names(encoders: Sequence[RequestedEncoder]) -> None:
    """Raise `EvaluationError` if two encoders have the same name, since their results would be mixed up.

    Raises:
        EvaluationError: if two have the same name.
    """
    names = [encoder.spec.name for encoder in encoders]
    for name in names:
        if names.count(name) > 1:
            raise EvaluationError(f"two encoders are called {name}; give them names in LATHE_ENCODERS")


def compute_trial_key(entry: Entry, limit: int | None) -> str:
    """Return the key of a task in the results log, a hash of its data set and the row limit."""
    return digest(entry.digest(), limit)[:32]
