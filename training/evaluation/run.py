"""An evaluation from suite to scores, taken up again where it was stopped.

OUT/
├── vectors/       raw output of each encoder                       store.py
├── methods/       fitted maps and what they keep of the geometry   shelf.py
├── audits/        what is odd about each encoder's vectors         audit/
├── tasks.jsonl    what is known of each task                       scores.py
├── scores.jsonl   a line for each task, encoder and method         scores.py
└── evaluation.json, scores.csv, report.html                        report.py
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.errors import EncoderError, EvaluationError, TrainingError
from training.evaluation.audit.probe import Auditor
from training.evaluation.audit.record import Audit
from training.evaluation.corpus import Corpus, corpus_sentences, split_corpus
from training.evaluation.encoders import Group, Member, Wanted, encode_checked, plan_groups
from training.evaluation.methods import Method, control, ladder, means, size_of, sweep
from training.evaluation.pool import Workers
from training.evaluation.progress import StagedProgress
from training.evaluation.scores import Collected, Score, ScoreBook
from training.evaluation.shelf import MethodShelf
from training.evaluation.store import VectorStore, text_key
from training.evaluation.suites import Entry, Suite
from training.evaluation.worker import FittedMethod, Raw, Trial, collect, score_methods
from training.workspace import exclusive
from transforms.errors import TransformError
from transforms.progress import Progress

ENCODE_ROWS = 4096
"""Texts that are encoded between two writes to disk."""


@dataclass(frozen=True)
class Request:
    """What to evaluate.

    Attributes:
        suite: the data sets.
        encoders: at least one.
        out: the folder for everything.
        corpus: a source of sentences to fit on.
        chains: fitted methods.
        ladder: whether the nine methods of the mean-bias paper are compared.
        audit: whether the encoders' vectors are looked at for what is odd about them.
        sizes: of the reducers, as numbers or as shares below 1.
        sentences: numbers of sentences that R1 and R2 estimate their means from.
        limit: rows of a data set; None for all.
        processes: that score.
        device: of the encoders.
    """

    suite: Suite
    encoders: Sequence[Wanted]
    out: Path
    corpus: str = "pydoc:"
    chains: Sequence[Method] = ()
    ladder: bool = False
    audit: bool = False
    sizes: Sequence[Fraction] = ()
    sentences: Sequence[int] = ()
    limit: int | None = None
    processes: int = 1
    device: str | None = None

    def methods(self, dimensions: int) -> list[Method]:
        """All methods for an encoder of that width."""
        sizes = list(dict.fromkeys(size for one in self.sizes if (size := size_of(one, dimensions)) is not None))
        cut = [chain.cut(size) for chain in self.chains for size in sizes if chain.cuts_to(size)]
        debiasing = ladder() if self.ladder else []
        return [control(), *self.chains, *cut, *debiasing, *sweep(sizes), *means(dict.fromkeys(self.sentences))]


@dataclass(frozen=True)
class EncoderResult:
    """An encoder and what was fitted on it.

    Attributes:
        member: how it is named.
        mean_norm: ‖μ‖ of its unit vectors on the corpus; None where nothing was fitted.
        methods: by name.
        intrinsic: of the reductions, by method.
        problems: why a method could not be fitted, by method.
        audit: what is odd about its vectors; None where that was not asked for.
    """

    member: Member
    mean_norm: float | None
    methods: Mapping[str, Method]
    intrinsic: Mapping[str, Mapping[str, float]]
    problems: Mapping[str, str]
    audit: Audit | None = None


@dataclass(frozen=True)
class Results:
    """All that was measured.

    Attributes:
        request: what was asked for.
        tasks: what is known of each, the broken ones with their error.
        encoders: in the order asked for.
        scores: of this request's tasks, encoders and methods.
        corpus_rows: sentences that methods were fitted on, those kept aside included.
        problems: encoders that could not be loaded.
    """

    request: Request
    tasks: Sequence[Collected]
    encoders: Sequence[EncoderResult]
    scores: Sequence[Score]
    corpus_rows: int
    problems: Sequence[str] = ()


def evaluate(request: Request, on_progress: Progress) -> Results:
    """Score every method of every encoder on every task.

    What a stopped run has done is not done again, and a task or method that fails does not stop the others.

    Raises:
        EvaluationError: if another evaluation is writing to the folder, or nothing can be evaluated.
        EncoderError: if an encoder cannot be loaded.
        SourceError: if the corpus cannot be read.
    """
    busy = EvaluationError(f"another evaluation is writing to {request.out.name}; name another folder with --out")
    with exclusive(request.out, busy):
        return Evaluation(request, on_progress).run()


class Evaluation:
    """One run; see `evaluate`."""

    def __init__(self, request: Request, on_progress: Progress) -> None:
        self.request = request
        self.progress = StagedProgress(on_progress)
        self.book = ScoreBook(request.out)
        self.shelf = MethodShelf(request.out / "methods")
        self.trials = [Trial(entry, trial_key(entry, request.limit), request.limit) for entry in request.suite.entries]
        self.sentences = corpus_sentences(request.corpus) if self.needs_corpus() else []
        self.digest = hashlib.sha256("\0".join(self.sentences).encode(errors="surrogatepass")).hexdigest()
        self.tasks: dict[str, Collected] = self.book.described()
        self.collected: dict[tuple[tuple[str, str], ...], dict[str, Collected]] = {}
        self.problems: list[str] = []
        self.auditor = Auditor(
            request.out / "audits", self.sentences, self.digest, lambda told: self.progress.report("encode", 1.0, told)
        )
        require_names(request.encoders)

    def needs_corpus(self) -> bool:
        """Whether something is to be fitted on sentences, or measured on them."""
        return bool(self.request.ladder or self.request.sizes or self.request.sentences or self.request.audit)

    def run(self) -> Results:
        """Group after group of encoders, each in memory alone."""
        found: list[EncoderResult] = []
        openers = plan_groups(self.request.encoders, self.request.device)
        self.progress.groups = len(openers)
        with Workers(self.request.processes) as workers:
            for number, opener in enumerate(openers):
                self.progress.begin_group(number)
                try:
                    found += self.run_group(opener(), workers)
                except EncoderError as error:  # one of many must not stop the others
                    self.problems.append(str(error))
        if not found:
            raise EncoderError("; ".join(self.problems))
        self.progress.on_progress(1.0, "evaluated")
        return Results(
            self.request, self.all_tasks(), found, list(self.scores_of(found)), len(self.sentences), self.problems
        )

    def scores_of(self, encoders: Sequence[EncoderResult]) -> Iterator[Score]:
        """The scores of this request, under its names: the book may hold others, and these under older names."""
        for trial in self.trials:
            for result in encoders:
                for method in result.methods.values():
                    key = method.key_on(result.member.output, self.digest)
                    score = self.book.by_cell.get((trial.key, result.member.output, key))
                    if score is not None:
                        name = result.member.name
                        yield replace(score, task=trial.entry.name, encoder=name, method=method.name)

    def run_group(self, group: Group, workers: Workers) -> list[EncoderResult]:
        """Encode, fit and score for encoders that are run together."""
        todo = [trial for trial in self.trials if not self.finished(trial, group)]
        collected = self.collect(todo, dict(group.members[0].prompts), workers)
        self.tasks |= {trial.key: one for trial, one in zip(todo, collected, strict=True)}
        usable = [one for one in collected if one.error is None]
        if todo == self.trials and not usable:
            problems = [f"{one.task}: {one.error}" for one in self.all_tasks()]
            raise EvaluationError("no data set can be evaluated: " + "; ".join(problems))
        asked = dict.fromkeys(pair for one in usable for pair in one.asked)
        stores = [VectorStore(self.request.out / "vectors" / m.output, m.dimensions) for m in group.members]
        self.encode(group, stores, [*asked, *((None, sentence) for sentence in self.sentences)])
        audits = self.audit(group, stores, workers) if self.request.audit else [None] * len(stores)
        results, fitted = [], []
        for index, (member, store, audit) in enumerate(zip(group.members, stores, audits, strict=True)):
            result, methods = self.fit(member, store, index, len(stores))
            results.append(replace(result, audit=audit))
            fitted.append(methods)
        self.score(group, stores, fitted, {one.key for one in usable}, workers)
        return results

    def audit(self, group: Group, stores: Sequence[VectorStore], workers: Workers) -> list[Audit | None]:
        """What is odd about the group's vectors; the tasks are read for it even where they have all their scores."""
        prompts = dict(group.members[0].prompts)
        keys = [trial.key for trial in self.trials if trial.key in self.tasks and self.tasks[trial.key].error is None]
        read = partial(self.collect, self.trials, prompts, workers)
        return list(self.auditor.audits(group, stores, keys, read, partial(self.encode, group, stores)))

    def finished(self, trial: Trial, group: Group) -> bool:
        """Whether a task has all its scores on these encoders, so that nothing must be known of its texts."""
        return trial.key in self.tasks and all(
            self.book.done((trial.key, member.output, method.key_on(member.output, self.digest)))
            for member in group.members
            for method in self.request.methods(member.dimensions)
            if method.unsuited(member.fingerprint, member.dimensions) is None
        )

    def all_tasks(self) -> list[Collected]:
        """What is known of every data set of the suite, in its order."""
        unread = [Collected(name, "", error=why) for name, why in self.request.suite.problems.items()]
        return [*(self.tasks[trial.key] for trial in self.trials), *unread]

    def collect(self, trials: Sequence[Trial], prompts: dict[str, str], workers: Workers) -> list[Collected]:
        """What tasks ask an encoder with these prompts for; asked once for all encoders with the same."""
        known = self.collected.setdefault(tuple(sorted(prompts.items())), {})
        new = [trial for trial in trials if trial.key not in known]
        for done, (index, result) in enumerate(workers.run([(collect, (trial, prompts)) for trial in new]), 1):
            trial = new[index]
            failed = isinstance(result, Exception)
            known[trial.key] = Collected(trial.entry.name, trial.key, error=str(result)) if failed else result
            self.progress.report("collect", done / len(new), f"read {trial.entry.name}")
        fresh = [known[trial.key] for trial in new if trial.key not in self.tasks]
        self.book.describe(one for one in fresh if one.error is None)
        return [known[trial.key] for trial in trials]

    def encode(self, group: Group, stores: Sequence[VectorStore], asked: Sequence[tuple[str | None, str]]) -> None:
        """Give every store the vectors it lacks, a few thousand texts at a time."""
        first = group.members[0]
        by_key = {text_key(text, first.prompt(name)): (name, text) for name, text in reversed(asked)}
        missing = [(key, *pair) for key, pair in by_key.items() if not all(key in store for store in stores)]
        called = first.name if len(stores) == 1 else f"{len(stores)} variants"
        done = 0
        for prompt in dict.fromkeys(name for _, name, _ in missing):
            wanted = [(key, text) for key, name, text in missing if name == prompt]
            for start in range(0, len(wanted), ENCODE_ROWS):
                keys, texts = zip(*wanted[start : start + ENCODE_ROWS], strict=True)

                def report(rows: int, before: int = done) -> None:
                    sentence = f"{before + rows:,} of {len(missing):,} texts encoded by {called}"
                    self.progress.report("encode", (before + rows) / len(missing), sentence)

                vectors = encode_checked(group, texts, prompt, report)
                for store, found in zip(stores, vectors, strict=True):
                    new = [row for row, key in enumerate(keys) if key not in store]
                    store.add([keys[row] for row in new], found[new])
                done += len(texts)

    def fit(
        self, member: Member, store: VectorStore, index: int, members: int
    ) -> tuple[EncoderResult, list[FittedMethod]]:
        """Every method on one encoder's sentences."""
        corpus: Corpus | None = None
        if self.sentences:
            corpus = split_corpus(self.vectors_of_corpus(member, store), self.digest)
        asked = self.request.methods(member.dimensions)
        reasons = {method.name: method.unsuited(member.fingerprint, member.dimensions) for method in asked}
        methods = [method for method in asked if reasons[method.name] is None]
        problems = {name: reason for name, reason in reasons.items() if reason}
        for size in (size for size in self.request.sizes if size_of(size, member.dimensions) is None):
            problems[f"size {size}"] = f"it is not below the {member.dimensions} dimensions there are"
        fitted, measures = [], {}
        for done, method in enumerate(methods):

            def report(message: str, done: int = done) -> None:
                fraction = (index + done / len(methods)) / members
                self.progress.report("fit", fraction, f"{message} on {member.name}")

            try:
                one, intrinsic = self.shelf.fitted(method, member.output, corpus, self.digest, report)
            except (TransformError, TrainingError) as error:
                problems[method.name] = str(error)
                continue
            fitted.append(one)
            if intrinsic:
                measures[method.name] = intrinsic
        norm = corpus.mean_norm if corpus else None
        working = {method.name: method for method in methods if method.name not in problems}
        return EncoderResult(member, norm, working, measures, problems), fitted

    def vectors_of_corpus(self, member: Member, store: VectorStore) -> NDArray[np.float32]:
        """The sentences `(n, d)`."""
        return store.get([text_key(sentence, member.prompt(None)) for sentence in self.sentences])

    def score(
        self,
        group: Group,
        stores: Sequence[VectorStore],
        fitted: Sequence[list[FittedMethod]],
        usable: set[str],
        workers: Workers,
    ) -> None:
        """Every cell that has no score yet; those of one task follow one another, so that it is loaded once."""
        jobs = []
        for trial in (trial for trial in self.trials if trial.key in usable):
            for member, store, methods in zip(group.members, stores, fitted, strict=True):
                todo = [m for m in methods if not self.book.done((trial.key, member.output, m.key))]
                if todo:
                    prompts = dict(member.prompts), member.default_prompt
                    raw = Raw(member.name, member.output, member.dimensions, *prompts, store.folder)
                    jobs.append((score_methods, (trial, raw, todo)))
        for done, (index, result) in enumerate(workers.run(jobs), 1):
            trial, raw, todo = jobs[index][1]
            if isinstance(result, Exception):
                cells = [(trial.entry.name, trial.key, raw.name, raw.fingerprint, m.name, m.key) for m in todo]
                result = [Score(*cell, None, error=str(result)) for cell in cells]
            self.book.add(result)
            self.progress.report(
                "score", done / len(jobs), f"{done:,} of {len(jobs):,}: {trial.entry.name} on {raw.name}"
            )


def require_names(encoders: Sequence[Wanted]) -> None:
    """Raise `EvaluationError` for two encoders of one name, which no result could tell apart."""
    names = [f"{one.spec.name}:{one.variant}" for one in encoders if one.spec is not None]
    for name in names:
        if names.count(name) > 1:
            name = name.removesuffix(":")
            raise EvaluationError(f"two encoders are called {name}; give them names in LATHE_ENCODERS")


def trial_key(entry: Entry, limit: int | None) -> str:
    """What a score belongs to."""
    return hashlib.sha256(json.dumps([entry.digest(), limit]).encode()).hexdigest()[:32]
