"""Run of an evaluation, from suite to scores, which resumes a stopped one.

OUT/
├── .vectors-…/    vectors of the encoder that is evaluated, deleted after it  encoders.py
├── methods/       the chains that are compared
├── tasks.jsonl    descriptions of the tasks                                   worker.py
├── scores.jsonl   results log: a line for each task, encoder and method       worker.py
└── evaluation.json, scores.csv, report.html                                   report.py
"""

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

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
from lathe.training.evaluation.suites import Entry, Suite
from lathe.training.evaluation.worker import (
    Score,
    TaskDescription,
    Workers,
    collect_texts,
    describe_cell,
    score_methods,
)
from lathe.training.journal import Journal
from lathe.training.reporting.text import format_count, format_duration
from lathe.training.workspace import lock_folder
from lathe.transforms.progress import Progress
from lathe.transforms.vectors import FloatArray

SCORES, TASKS = "scores.jsonl", "tasks.jsonl"
"""File names of the results log, in the output folder. Of several lines on one score or task, the last counts."""
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
    """EvaluationResults of an evaluation: tasks, encoders, scores and problems.

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
        self.progress = StagedProgress(on_progress, len(request.encoders))
        self.entries = [replace(entry, limit=request.limit) for entry in request.suite.entries]
        self.score_log = Journal(request.out / SCORES, Score)
        self.task_log = Journal(request.out / TASKS, TaskDescription)
        self.scores = {score.cell: score for score in self.score_log.read()}
        self.tasks = {task.key: task for task in self.task_log.read()}
        self.collected: dict[tuple[tuple[str, str], ...], dict[str, TaskDescription]] = {}
        self.problems: list[str] = []
        # EvaluationResults of encoders with the same name would be mixed up.
        for name, count in Counter(encoder.spec.name for encoder in request.encoders).items():
            if count > 1:
                raise EvaluationError(f"two encoders are called {name}; give them names in LATHE_ENCODERS")

    def run(self) -> EvaluationResults:
        """Evaluate one encoder after another, so that only one is in memory at a time, and return all results.

        An encoder that cannot be loaded or cannot encode is left out and named in `problems`.

        Raises:
            EncoderError: if no encoder can be used.
            EvaluationError: if no data set can be evaluated.
        """
        results: list[EncoderResult] = []
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
        return EvaluationResults(self.request, self.list_tasks(), results, self.select_scores(results), self.problems)

    def select_scores(self, encoders: Sequence[EncoderResult]) -> list[Score]:
        """Return the scores in the results log that belong to this request and the given encoders.

        Each score gets the names of task, encoder and method that this request uses.
        """
        return [
            replace(score, task=entry.name, encoder=result.member.name, method=method.name)
            for entry in self.entries
            for result in encoders
            for method in result.methods.values()
            if (score := self.find_score(entry, result.member, method)) is not None
        ]

    def find_score(self, entry: Entry, member: Member, method: EvaluatedMethod) -> Score | None:
        """Return the latest score of a method on a task with an encoder, also a failed one, or None without one."""
        return self.scores.get((entry.key, member.output, method.key))

    def has_score(self, entry: Entry, member: Member, method: EvaluatedMethod) -> bool:
        """Return whether a method has a score. Failed ones do not count, so that they are tried again."""
        score = self.find_score(entry, member, method)
        return score is not None and score.error is None

    def run_encoder(self, encoder: EvaluatedEncoder, workers: Workers) -> EncoderResult:
        """Evaluate one encoder: encode the tasks' texts, and score the methods on the tasks.

        Returns the encoder's methods and problems, while the scores go to the results log. Descriptions of tasks,
        methods and scores are written to the output folder. Tasks that have all their scores are not read again.

        Raises:
            EncoderError: if the encoder cannot encode the texts.
            EvaluationError: if no data set can be evaluated.
        """
        member = encoder.member
        unfinished = [entry for entry in self.entries if not self.is_finished(entry, member)]
        collected = self.collect(unfinished, member.prompts, workers)
        self.tasks |= {task.key: task for task in collected}
        usable = [task for task in collected if task.error is None]
        if unfinished == self.entries and not usable:
            problems = [f"{task.task}: {task.error}" for task in self.list_tasks()]
            raise EvaluationError("no data set can be evaluated: " + "; ".join(problems))

        with self.open_folder(member) as folder:
            vectors = self.encode(encoder, self.list_texts(usable), folder)
            result = self.prepare_methods(member, vectors)
            self.score(result, folder, {task.key: task.type for task in usable}, workers)

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

    def is_finished(self, entry: Entry, member: Member) -> bool:
        """Return whether the results log has a score of every suitable method for this task and encoder.

        If so, the task need not be read again.
        """
        return entry.key in self.tasks and all(
            self.has_score(entry, member, method)
            for method in self.list_methods(member)
            if method.unsuited_reason(member.fingerprint, member.dimensions) is None
            and method.suits_task(self.tasks[entry.key].type)
        )

    def list_tasks(self) -> list[TaskDescription]:
        """Return the description of every task of the suite, in its order.

        A description with an error follows for each data set that could not be read.
        """
        unread = [TaskDescription(name, "", error=why) for name, why in self.request.suite.problems.items()]
        return [*(self.tasks[entry.key] for entry in self.entries), *unread]

    def collect(self, entries: Sequence[Entry], prompts: Mapping[str, str], workers: Workers) -> list[TaskDescription]:
        """Return the description of each task, with the texts that it encodes under these prompts.

        Tasks that are not cached are run on random vectors in the workers. Results are cached in memory. New tasks
        without an error are appended to the log of tasks. Failed ones have an error.
        """
        known = self.collected.setdefault(tuple(sorted(prompts.items())), {})
        new = [entry for entry in entries if entry.key not in known]
        if new:
            self.progress.report("collect", 0.0, f"reading {format_count(len(new), 'data set')}")
        jobs = [(collect_texts, (entry, prompts)) for entry in new]
        for done, (index, result) in enumerate(workers.run(jobs), 1):
            entry = new[index]
            failed = isinstance(result, Exception)
            known[entry.key] = TaskDescription(entry.name, entry.key, error=str(result)) if failed else result
            self.progress.report("collect", done / len(new), f"read {entry.name}")

        # Logged without the texts, so that finished tasks need not be read again. Failed ones are read by a later run.
        read = [known[entry.key] for entry in new if entry.key not in self.tasks]
        self.task_log.append(replace(task, asked=()) for task in read if task.error is None)
        return [known[entry.key] for entry in entries]

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

    def prepare_methods(self, member: Member, vectors: TextVectors) -> EncoderResult:
        """Write the chains of transforms to the output folder, from which the workers load them.

        Methods that cannot transform the encoder's vectors are left out, with their reason in the result's `problems`.
        """
        methods: dict[str, EvaluatedMethod] = {}
        problems: dict[str, str] = {}
        for method in self.list_methods(member):
            reason = method.unsuited_reason(member.fingerprint, member.dimensions)
            if reason is None:
                methods[method.name] = self._save_chain(method)
            elif method.group != "rescored":  # its chain is named already
                problems[method.name] = reason

        return EncoderResult(member, methods, problems)

    def _save_chain(self, method: EvaluatedMethod) -> EvaluatedMethod:
        if method.chain is None:
            return method
        folder = self.request.out / "methods" / method.key
        if not folder.exists():
            method.chain.save(folder)
        return replace(method, folder=folder)

    def score(self, encoder: EncoderResult, folder: Path, usable: Mapping[str, str], workers: Workers) -> None:
        """Score an encoder's methods on all usable tasks, and append the scores to the results log.

        The worker processes score. Scores that the log has already are skipped. What fails gets a score with an error.

        Args:
            encoder: the encoder with its methods.
            folder: folder of its vectors.
            usable: types of the tasks that can be evaluated, by key.
            workers: process pool.
        """
        member, jobs = encoder.member, []
        # Methods of one task in one job, so that a process loads the task once.
        for entry in (entry for entry in self.entries if entry.key in usable):
            suited = [method for method in encoder.methods.values() if method.suits_task(usable[entry.key])]
            unscored = [replace(m, chain=None) for m in suited if not self.has_score(entry, member, m)]
            if unscored:
                jobs.append((score_methods, (entry, member, folder, unscored)))

        if jobs:
            self.progress.report("score", 0.0, f"scoring {format_count(len(jobs), 'data set')} on {member.name}")
        for done, (index, result) in enumerate(workers.run(jobs), 1):
            entry, *_, unscored = jobs[index][1]
            if isinstance(result, Exception):
                result = [describe_cell(entry, member, method, str(result)) for method in unscored]
            self.score_log.append(result)
            self.scores |= {score.cell: score for score in result}
            self.progress.report("score", done / len(jobs), f"{done:,} of {len(jobs):,}: {entry.name} on {member.name}")


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

        before = sum(SHARES[name] for name in takewhile(lambda name: name != stage, SHARES))
        progress = (self.encoder + before + SHARES[stage] * fraction) / self.encoders
        seconds_left = (time.monotonic() - self.begun) * (1 - fraction) / fraction if fraction > 0 else 0.0
        left = f", {format_duration(seconds_left)} left" if seconds_left > 1 else ""
        self.on_progress(min(progress, 1.0), sentence + left)
