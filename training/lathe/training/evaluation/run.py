"""Run of an evaluation, from suite to scores. A stopped run is resumed from the output folder.

OUT/
├── .vectors-…/    vectors of the encoder that is being evaluated; temporary   encoders.py
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
"""File names of the results log in the output folder. If several lines have the same score or task, the last counts."""
ENCODE_ROWS = 4096
"""Number of texts whose vectors are in memory at a time."""
VECTORS_PREFIX = ".vectors-"
"""Beginning of the name of the temporary folder of vectors."""
SHARES = {"load": 0.05, "collect": 0.05, "encode": 0.4, "score": 0.5}
"""Share of a stage in the work on one encoder."""


@dataclass(frozen=True)
class Request:
    """Request for an evaluation: data sets, encoders, chains of transforms, and settings.

    Attributes:
        suite: data sets.
        encoders: encoders, at least one.
        out: output folder.
        chains: fitted chains to evaluate.
        limit: maximum number of rows of a data set; None for all rows.
        processes: number of scoring processes.
        device: torch device of the encoders; None for the default.
        stores: where vectors are stored, so that texts are not encoded again; None stores none.
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
        """List the methods to evaluate: raw vectors, chains of transforms, and compressing chains with rescoring."""
        rescored = (chain.with_rescoring() for chain in self.chains if chain.compresses)
        return [CONTROL_METHOD, *self.chains, *rescored]


@dataclass(frozen=True)
class EncoderResult:
    """An encoder of an evaluation with its methods. The scores are in `EvaluationResults`.

    Attributes:
        member: description of the encoder.
        methods: methods that were evaluated, by name.
        problems: reasons why other methods could not be evaluated, by name.
    """

    member: Member
    methods: Mapping[str, EvaluatedMethod]
    problems: Mapping[str, str]


@dataclass(frozen=True)
class EvaluationResults:
    """Results of an evaluation: tasks, encoders, scores and problems.

    Attributes:
        request: the request.
        tasks: descriptions of the tasks; tasks that could not be evaluated have an error.
        encoders: results by encoder, in the order of the request.
        scores: scores of the requested tasks, encoders and methods.
        problems: messages about encoders that could not be used.
    """

    request: Request
    tasks: Sequence[TaskDescription]
    encoders: Sequence[EncoderResult]
    scores: Sequence[Score]
    problems: Sequence[str] = ()


def evaluate(request: Request, on_progress: Progress) -> EvaluationResults:
    """Score every method of every encoder on every task of the suite.

    Scores are logged in the output folder, and work that an earlier run finished is not repeated. If a task, method or
    encoder fails, the results name the problem, and the run continues.

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

    Creating the object reads the results log, and raises `EvaluationError` if two encoders have the same name.

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
        # Results of encoders with the same name would be mixed up.
        for name, count in Counter(encoder.spec.name for encoder in request.encoders).items():
            if count > 1:
                raise EvaluationError(f"two encoders are called {name}; give them different names in LATHE_ENCODERS")

    def run(self) -> EvaluationResults:
        """Evaluate the encoders one after another. An encoder that fails is left out, and an error raised if all fail.

        Only one encoder is in memory at a time. Encoders that cannot be loaded, or fail on texts, are named in
        `problems` of the results.

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
        """Select the scores in the results log that belong to this request and the given encoders.

        The selected scores get the names of task, encoder and method of this request, which may differ from the log.
        """
        return [
            replace(score, task=entry.name, encoder=result.member.name, method=method.name)
            for entry in self.entries
            for result in encoders
            for method in result.methods.values()
            if (score := self.find_score(entry, result.member, method)) is not None
        ]

    def find_score(self, entry: Entry, member: Member, method: EvaluatedMethod) -> Score | None:
        """Return the latest score of a method on a task with an encoder, also if it failed, or None without a score."""
        return self.scores.get((entry.key, member.output, method.key))

    def has_score(self, entry: Entry, member: Member, method: EvaluatedMethod) -> bool:
        """Return whether a method has a score without an error on a task with an encoder.

        Failed scores do not count, so that they are computed again.
        """
        score = self.find_score(entry, member, method)
        return score is not None and score.error is None

    def run_encoder(self, encoder: EvaluatedEncoder, workers: Workers) -> EncoderResult:
        """Evaluate an encoder's methods on the unfinished tasks, and log the scores. Raise without a usable data set.

        Returns the encoder's methods and problems. Task descriptions and chains are written to the output folder too.
        Tasks with scores of all methods are not read again.

        Raises:
            EncoderError: if the encoder fails on the texts.
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
        """List the distinct `(prompt name, text)` pairs that the tasks encode."""
        return list(dict.fromkeys(pair for task in tasks for pair in task.asked))

    @contextmanager
    def open_folder(self, member: Member) -> Iterator[Path]:
        """Create a temporary folder for the encoder's vectors, and delete the folder after the block.

        Folders that a killed run left behind are deleted first.
        """
        for left in self.request.out.glob(f"{VECTORS_PREFIX}*"):  # by a killed run
            shutil.rmtree(left, ignore_errors=True)
        with TemporaryDirectory(prefix=VECTORS_PREFIX, dir=self.request.out) as folder:
            yield Path(folder)

    def list_methods(self, member: Member) -> Sequence[EvaluatedMethod]:
        """List the methods of the request. Methods that cannot transform the encoder's vectors are included."""
        return self.request.list_methods()

    def is_finished(self, entry: Entry, member: Member) -> bool:
        """Return whether every suitable method has a score without an error on this task and encoder.

        A finished task is not read again.
        """
        return entry.key in self.tasks and all(
            self.has_score(entry, member, method)
            for method in self.list_methods(member)
            if method.unsuited_reason(member.fingerprint, member.dimensions) is None
            and method.suits_task(self.tasks[entry.key].type)
        )

    def list_tasks(self) -> list[TaskDescription]:
        """List the descriptions of all tasks in the order of the suite, then of the suite's unusable data sets.

        The description of an unusable data set has the reason as error.
        """
        unread = [TaskDescription(name, "", error=why) for name, why in self.request.suite.problems.items()]
        return [*(self.tasks[entry.key] for entry in self.entries), *unread]

    def collect(self, entries: Sequence[Entry], prompts: Mapping[str, str], workers: Workers) -> list[TaskDescription]:
        """Describe tasks and texts to encode, by runs on random vectors, and log new tasks. Failures become errors.

        Tasks are run in the workers. Descriptions are cached in memory. A task that fails has a description with an
        error, which is not logged.
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

        # Logged without the texts, so that finished tasks are not read again. A later run reads failed tasks again.
        read = [known[entry.key] for entry in new if entry.key not in self.tasks]
        self.task_log.append(replace(task, asked=()) for task in read if task.error is None)
        return [known[entry.key] for entry in entries]

    def encode(self, encoder: EvaluatedEncoder, asked: Sequence[tuple[str | None, str]], folder: Path) -> TextVectors:
        """Encode `(prompt name, text)` pairs, write the vectors to files in the folder, and memory-map the files.

        Raises:
            EncoderError: if the encoder fails, or returns NaN or inf.
        """
        member = encoder.member
        # Reversed, so that the first of several pairs with the same key names the prompt.
        by_key = {text_key(text, member.prompt(name)): (name, text) for name, text in reversed(asked)}
        write_vectors(folder, self._encode_blocks(encoder, by_key))
        return TextVectors.open(folder, member.dimensions)

    def _encode_blocks(
        self, encoder: EvaluatedEncoder, by_key: Mapping[bytes, tuple[str | None, str]]
    ) -> Iterator[tuple[Sequence[bytes], FloatArray]]:
        """Encode `(prompt name, text)` pairs, prompt by prompt, and yield blocks of keys with vectors `(n, d)`.

        Reports the progress of the stage `encode`.
        """
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
        """Save the chains that suit the encoder's vectors for the workers, and list reasons for the other methods.

        Chains are saved in the output folder, unless they are there already. The reasons are in `problems` of the
        result.
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
        """Score an encoder's methods on usable tasks in the workers, and log scores and failures, unless logged.

        Scores without an error in the log are not computed again. A failure is logged as a score with an error.

        Args:
            encoder: the encoder with its methods.
            folder: folder of the encoder's vectors.
            usable: mteb type by key of the tasks that can be evaluated.
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
    """Progress of an evaluation of several encoders, computed from the progress of the current encoder's stage.

    The stages are `load`, `collect`, `encode` and `score`.

    Args:
        on_progress: called with progress in [0, 1] and a message.
        encoders: number of encoders, which run one after another.
    """

    def __init__(self, on_progress: Progress, encoders: int = 1) -> None:
        self.on_progress = on_progress
        self.encoders = encoders
        self.begin_encoder(0)

    def begin_encoder(self, number: int) -> None:
        """Begin with the encoder of this number, counted from 0: clear the stage, and restart the clock."""
        self.encoder, self.stage, self.begun = number, "", time.monotonic()

    def report(self, stage: str, fraction: float, sentence: str) -> None:
        """Report the progress of the whole evaluation in [0, 1], with the estimated time left in the stage.

        The time left is appended to the message if it is over a second. If the stage has changed since the last call,
        the clock is restarted.

        Args:
            stage: current stage.
            fraction: fraction of the stage that is done, in [0, 1].
            sentence: message.
        """
        if stage != self.stage:
            self.stage, self.begun = stage, time.monotonic()

        before = sum(SHARES[name] for name in takewhile(lambda name: name != stage, SHARES))
        progress = (self.encoder + before + SHARES[stage] * fraction) / self.encoders
        seconds_left = (time.monotonic() - self.begun) * (1 - fraction) / fraction if fraction > 0 else 0.0
        left = f", {format_duration(seconds_left)} left" if seconds_left > 1 else ""
        self.on_progress(min(progress, 1.0), sentence + left)
