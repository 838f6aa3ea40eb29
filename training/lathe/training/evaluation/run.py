"""Run of an evaluation, from suite to scores, which resumes a stopped one.

OUT/
├── .vectors-…/    vectors of the encoder that is evaluated, deleted after it   encoders.py
├── methods/       the chains that are compared
├── tasks.jsonl    descriptions of the tasks                        scores.py
├── scores.jsonl   results log: a line for each task, encoder and method   scores.py
└── evaluation.json, scores.csv, report.html                        report.py
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from lathe.training.digests import digest
from lathe.training.encoder.spec import VectorStores
from lathe.training.errors import EncoderError, EvaluationError
from lathe.training.evaluation.encoders import (
    EvaluatedEncoder,
    Member,
    RequestedEncoder,
    TextVectors,
    text_key,
    write_vectors,
)
from lathe.training.evaluation.methods import CONTROL_METHOD, EvaluatedMethod
from lathe.training.evaluation.scores import ResultsLog, Score, TaskDescription
from lathe.training.evaluation.suites import Entry, Suite
from lathe.training.evaluation.worker import FittedMethod, RawVectors, TaskTrial, Workers, collect_texts, score_methods
from lathe.training.reporting.text import format_count
from lathe.training.workspace import lock_folder
from lathe.transforms.progress import Progress
from lathe.transforms.vectors import FloatArray

ENCODE_ROWS = 4096
"""Number of texts whose vectors are in memory at a time."""
VECTORS_PREFIX = ".vectors-"
"""Beginning of the name of the temporary folder of vectors."""
SHARES = {"load": 0.05, "collect": 0.05, "encode": 0.4, "score": 0.5}
"""Share of each stage in the work on one encoder."""


@dataclass(frozen=True)
class Request:
    """Request for an evaluation: data sets, encoders, chains of transforms, and settings.

    Attributes:
        suite: data sets.
        encoders: encoders, at least one.
        out: output folder.
        chains: fitted chains to evaluate.
        limit: maximum number of rows of a data set; None for all.
        processes: number of scoring processes.
        device: torch device of the encoders; None for the default.
        stores: where vectors are stored, and read instead of being computed again; None stores none.
    """

    suite: Suite
    encoders: Sequence[RequestedEncoder]
    out: Path
    chains: Sequence[EvaluatedMethod] = ()
    limit: int | None = None
    processes: int = 1
    device: str | None = None
    stores: VectorStores | None = None

    def list_methods(self) -> list[EvaluatedMethod]:
        """Return the methods to evaluate: raw vectors, chains of transforms, and compressing chains with rescoring."""
        rescored = (chain.with_rescoring() for chain in self.chains if chain.compresses)
        return [CONTROL_METHOD, *self.chains, *rescored]


@dataclass(frozen=True)
class EncoderResult:
    """Encoder of an evaluation with its methods, whose scores are in `EvaluationResults`.

    Attributes:
        member: description of the encoder.
        methods: methods that were evaluated, by name.
        problems: reasons why methods could not be evaluated, by name.
    """

    member: Member
    methods: Mapping[str, EvaluatedMethod]
    problems: Mapping[str, str]


@dataclass(frozen=True)
class EvaluationResults:
    """Results of an evaluation: tasks, encoders, scores and problems.

    Attributes:
        request: the request.
        tasks: description of each task; failed ones have an error.
        encoders: results by encoder, in the order requested.
        scores: scores of the requested tasks, encoders and methods.
        problems: messages on encoders that could not be used.
    """

    request: Request
    tasks: Sequence[TaskDescription]
    encoders: Sequence[EncoderResult]
    scores: Sequence[Score]
    problems: Sequence[str] = ()


def evaluate(request: Request, on_progress: Progress) -> EvaluationResults:
    """Score every method of every encoder on every task of the suite.

    Intermediate results are written to `request.out`, and work that an earlier run finished is not repeated. A task,
    method or encoder that fails does not stop the others. Its problem is part of the results.

    Args:
        request: what to evaluate, and the output folder.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        EvaluationError: if another process evaluates in the same folder, or no data set can be evaluated.
        EncoderError: if no encoder can be used.
    """
    busy = EvaluationError(f"another evaluation is writing to {request.out.name}; name another folder with --out")
    with lock_folder(request.out, busy):
        return Evaluation(request, on_progress).run()


class Evaluation:
    """One run of an evaluation, which scores every method of every encoder on every task.

    Construction reads the results log. It raises `EvaluationError` if two encoders have the same name.

    Args:
        request: what to evaluate.
        on_progress: called with progress in [0, 1] and a message.
    """

    def __init__(self, request: Request, on_progress: Progress) -> None:
        self.request = request
        self.progress = StagedProgress(on_progress)
        self.log = ResultsLog(request.out)
        self.trials = [
            TaskTrial(entry, compute_trial_key(entry, request.limit), request.limit) for entry in request.suite.entries
        ]
        self.tasks: dict[str, TaskDescription] = self.log.read_tasks()
        self.collected: dict[tuple[tuple[str, str], ...], dict[str, TaskDescription]] = {}
        self.problems: list[str] = []
        # Results of encoders with the same name would be mixed up.
        names = [encoder.spec.name for encoder in request.encoders]
        for name in names:
            if names.count(name) > 1:
                raise EvaluationError(f"two encoders are called {name}; give them names in LATHE_ENCODERS")

    def run(self) -> EvaluationResults:
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
                self.progress.report("load", 0.0, f"loading {requested.spec.name}")
                try:
                    results.append(self.run_encoder(requested.open(self.request.device, self.request.stores), workers))
                except EncoderError as error:  # one of many must not stop the others
                    self.problems.append(str(error))

        if not results:
            raise EncoderError("; ".join(self.problems))

        self.progress.on_progress(1.0, "evaluated")
        scores = list(self.select_scores(results))
        return EvaluationResults(self.request, self.list_tasks(), results, scores, self.problems)

    def select_scores(self, encoders: Sequence[EncoderResult]) -> Iterator[Score]:
        """Yield the scores in the results log that belong to this request and the given encoders.

        Each score gets the names of task, encoder and method that this request uses.
        """
        for trial in self.trials:
            for result in encoders:
                for method in result.methods.values():
                    score = self.log.by_cell.get((trial.key, result.member.output, method.key))
                    if score is not None:
                        name = result.member.name
                        yield replace(score, task=trial.entry.name, encoder=name, method=method.name)

    def run_encoder(self, encoder: EvaluatedEncoder, workers: Workers) -> EncoderResult:
        """Evaluate one encoder: encode the tasks' texts, and score the methods on the tasks.

        Returns the encoder's methods and problems, while the scores go to the results log. Descriptions of tasks,
        methods and scores are written to the output folder. Tasks that have all their scores are not read again.

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

        with self.open_folder(member) as folder:
            vectors = self.encode(encoder, self.list_texts(usable), folder)
            result, fitted = self.prepare_methods(member, vectors)
            self.score(result, folder, fitted, {task.key: task.type for task in usable}, workers)

        return result

    def list_texts(self, tasks: Sequence[TaskDescription]) -> list[tuple[str | None, str]]:
        """Return the distinct (prompt name, text) pairs that the tasks encode."""
        return list(dict.fromkeys(pair for task in tasks for pair in task.asked))

    @contextmanager
    def open_folder(self, member: Member) -> Iterator[Path]:
        """Yield a new temporary folder for the encoder's vectors, from which the workers read them.

        It is deleted after the block. Folders that a killed run left are deleted first.
        """
        for left in self.request.out.glob(f"{VECTORS_PREFIX}*"):  # by a killed run
            shutil.rmtree(left, ignore_errors=True)
        with TemporaryDirectory(prefix=VECTORS_PREFIX, dir=self.request.out) as folder:
            yield Path(folder)

    def list_methods(self, member: Member) -> Sequence[EvaluatedMethod]:
        """Return the methods to evaluate on an encoder, including those that cannot transform its vectors."""
        return self.request.list_methods()

    def is_finished(self, trial: TaskTrial, member: Member) -> bool:
        """Return whether the results log has a score of every suitable method for this task and encoder.

        If so, the task need not be read again.
        """
        return trial.key in self.tasks and all(
            self.log.has_score((trial.key, member.output, method.key))
            for method in self.list_methods(member)
            if method.unsuited_reason(member.fingerprint, member.dimensions) is None
            and method.suits_task(self.tasks[trial.key].type)
        )

    def list_tasks(self) -> list[TaskDescription]:
        """Return the description of every task of the suite, in its order.

        A description with an error follows for each data set that could not be read.
        """
        unread = [TaskDescription(name, "", error=why) for name, why in self.request.suite.problems.items()]
        return [*(self.tasks[trial.key] for trial in self.trials), *unread]

    def collect(self, trials: Sequence[TaskTrial], prompts: dict[str, str], workers: Workers) -> list[TaskDescription]:
        """Return the description of each task, with the texts that it encodes under these prompts.

        Tasks that are not cached are run on random vectors in the workers. Results are cached in memory. New tasks
        without an error are appended to the log of tasks. Failed ones have an error.
        """
        known = self.collected.setdefault(tuple(sorted(prompts.items())), {})
        new = [trial for trial in trials if trial.key not in known]
        if new:
            self.progress.report("collect", 0.0, f"reading {format_count(len(new), 'data set')}")
        for done, (index, result) in enumerate(workers.run([(collect_texts, (trial, prompts)) for trial in new]), 1):
            trial = new[index]
            failed = isinstance(result, Exception)
            known[trial.key] = TaskDescription(trial.entry.name, trial.key, error=str(result)) if failed else result
            self.progress.report("collect", done / len(new), f"read {trial.entry.name}")

        # A failed task is not logged, so that a later run reads it again.
        unlogged = [known[trial.key] for trial in new if trial.key not in self.tasks]
        # Logged, so that finished tasks need not be read again, with the number of their texts in place of the texts.
        described = [task for task in unlogged if task.error is None]
        self.log.tasks.append(replace(task, asked=(), texts=len(task.asked)) for task in described)
        return [known[trial.key] for trial in trials]

    def encode(self, encoder: EvaluatedEncoder, asked: Sequence[tuple[str | None, str]], folder: Path) -> TextVectors:
        """Encode (prompt name, text) pairs, write their vectors to the folder, and return the vectors by key.

        Raises:
            EncoderError: if the encoder fails, or returns NaN or inf.
        """
        member = encoder.member
        # Reversed: of texts with the same key, the first names the prompt.
        by_key = {text_key(text, member.prompt(name)): (name, text) for name, text in reversed(asked)}
        write_vectors(folder, self._encode_blocks(encoder, by_key))
        return TextVectors.open(folder, member.dimensions)

    def _encode_blocks(
        self, encoder: EvaluatedEncoder, by_key: Mapping[bytes, tuple[str | None, str]]
    ) -> Iterator[tuple[Sequence[bytes], FloatArray]]:
        """Encode (prompt name, text) pairs, prompt by prompt, and yield blocks of keys with their vectors `(n, d)`."""
        done = 0
        for prompt in dict.fromkeys(name for name, _ in by_key.values()):
            pairs = [(key, text) for key, (name, text) in by_key.items() if name == prompt]
            for start in range(0, len(pairs), ENCODE_ROWS):
                keys, texts = zip(*pairs[start : start + ENCODE_ROWS], strict=True)

                def report(rows: int, before: int = done) -> None:
                    sentence = f"{before + rows:,} of {len(by_key):,} texts encoded by {encoder.member.name}"
                    self.progress.report("encode", (before + rows) / len(by_key), sentence)

                yield keys, encoder.encode(texts, prompt, report)
                done += len(texts)

    def prepare_methods(self, member: Member, vectors: TextVectors) -> tuple[EncoderResult, list[FittedMethod]]:
        """Write the chains of transforms to the output folder, from which the workers load them.

        Methods that cannot transform the encoder's vectors are left out, with their reason in the result's `problems`.
        Returns the encoder's result, still without scores, and references to the methods on disk.
        """
        methods: dict[str, EvaluatedMethod] = {}
        problems: dict[str, str] = {}

        for method in self.list_methods(member):
            reason = method.unsuited_reason(member.fingerprint, member.dimensions)
            if reason is None:
                methods[method.name] = method
            elif method.group != "rescored":  # its chain is named already
                problems[method.name] = reason

        return EncoderResult(member, methods, problems), [self._save_method(method) for method in methods.values()]

    def _save_method(self, method: EvaluatedMethod) -> FittedMethod:
        if method.chain is None:
            return FittedMethod(method.name, method.key)
        folder = self.request.out / "methods" / method.key
        if not folder.exists():
            method.chain.save(folder)
        return FittedMethod(method.name, method.key, folder, rescored=method.group == "rescored")

    def score(
        self,
        encoder: EncoderResult,
        folder: Path,
        fitted: Sequence[FittedMethod],
        usable: Mapping[str, str],
        workers: Workers,
    ) -> None:
        """Score an encoder's fitted methods on all usable tasks, and append the scores to the results log.

        The worker processes score. Scores that the log has already are skipped. Failed tasks, encoders and methods get
        a score with an error.

        Args:
            encoder: the encoder with its methods.
            folder: folder of its vectors.
            fitted: its fitted methods.
            usable: types of the tasks that can be evaluated, by key.
            workers: process pool.
        """
        member = encoder.member
        prompts = dict(member.prompts), member.default_prompt
        raw = RawVectors(member.name, member.output, member.dimensions, *prompts, folder)
        jobs = []

        # Methods of one task in one job, so that a process loads the task once.
        for trial in (trial for trial in self.trials if trial.key in usable):
            suited = [m for m in fitted if encoder.methods[m.name].suits_task(usable[trial.key])]
            unscored = [m for m in suited if not self.log.has_score((trial.key, member.output, m.key))]
            if unscored:
                jobs.append((score_methods, (trial, raw, unscored)))

        if jobs:
            self.progress.report("score", 0.0, f"scoring {format_count(len(jobs), 'data set')} on {member.name}")
        for done, (index, result) in enumerate(workers.run(jobs), 1):
            trial, _, unscored = jobs[index][1]
            if isinstance(result, Exception):
                cells = [(trial.entry.name, trial.key, raw.name, raw.fingerprint, m.name, m.key) for m in unscored]
                result = [Score(*cell, None, error=str(result)) for cell in cells]
            self.log.add(result)
            self.progress.report(
                "score", done / len(jobs), f"{done:,} of {len(jobs):,}: {trial.entry.name} on {raw.name}"
            )


def compute_trial_key(entry: Entry, limit: int | None) -> str:
    """Return the key of a task in the results log: a hash of its data set and the row limit."""
    return digest(entry.digest(), limit)[:32]


class StagedProgress:
    """Progress of an evaluation of several encoders.

    It is computed from the progress of the current stage of the current encoder. The stages are `load`, `collect`,
    `encode` and `score`.

    Args:
        on_progress: called with progress in [0, 1] and a message.
        encoders: number of encoders, which run one after another.
    """

    def __init__(self, on_progress: Progress, encoders: int = 1) -> None:
        self.on_progress = on_progress
        self.encoders = encoders
        self.begin_encoder(0)

    def begin_encoder(self, number: int) -> None:
        """Begin the next encoder: clear the current stage, and restart the clock by which the time left is estimated.

        Args:
            number: number of the encoder, counted from 0.
        """
        self.encoder, self.stage, self.begun = number, "", time.monotonic()

    def report(self, stage: str, fraction: float, sentence: str) -> None:
        """Call `on_progress` with the progress of the whole evaluation in [0, 1] and a message.

        The message ends with the estimated time left in the stage if that is over a second. Another stage than at the
        last call restarts the clock.

        Args:
            stage: current stage.
            fraction: fraction of the stage that is done.
            sentence: message.
        """
        if stage != self.stage:
            self.stage, self.begun = stage, time.monotonic()

        names = list(SHARES)
        before = sum(SHARES[name] for name in names[: names.index(stage)])
        progress = (self.encoder + before + SHARES[stage] * fraction) / self.encoders
        seconds_left = (time.monotonic() - self.begun) * (1 - fraction) / fraction if fraction > 0 else 0.0
        self.on_progress(
            min(progress, 1.0), sentence + (f", {format_seconds(seconds_left)} left" if seconds_left > 1 else "")
        )


def format_seconds(seconds: float) -> str:
    """Format seconds as text, such as "42 s", or from 100 s on in minutes, such as "5 min"."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
