"""Pool of scoring processes that survives the death of a process, the functions that they run, and the results.

The functions collect the texts that a task encodes, and score methods on a task. The results are entries of the results
log. Errors are returned as messages.

Each process has one thread, because two processes with one thread do more work than one process with two.
"""

import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lathe.training.datasets.records import Warnings
from lathe.training.errors import EvaluationError
from lathe.training.evaluation.encoders import VECTORS, Member, TextVectors
from lathe.training.evaluation.methods import EvaluatedMethod
from lathe.training.evaluation.suites import Entry
from lathe.transforms.chain import Chain

if TYPE_CHECKING:
    from lathe.training.evaluation.units import UnitValues


@dataclass(frozen=True)
class Score:
    """Score of one method on one task with one encoder.

    Attributes:
        task: name of the task.
        task_key: hash of the task's data and the row limit, `Entry.key`.
        encoder: name of the encoder.
        fingerprint: hash of the encoder's output, `Member.output`.
        method: name of the method.
        method_key: hash of the method, `EvaluatedMethod.key`.
        score: mteb's main score, in [0, 1] for most tasks; None after an error.
        metrics: all metrics that mteb computed, by name.
        seconds: duration.
        error: reason why there is no score; None if there is a score.
        units: number of queries, texts or pairs of the data set, see units.py; 0 without `values`.
        values: values of units or of groups of units, in the order of the units; empty if they are not known.
    """

    task: str
    task_key: str
    encoder: str
    fingerprint: str
    method: str
    method_key: str
    score: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None
    units: int = 0
    values: list[float] = field(default_factory=list)

    @property
    def cell(self) -> tuple[str, str, str]:
        """Key of the score: hashes of task, encoder output and method. Names of these are not part of the key."""
        return self.task_key, self.fingerprint, self.method_key


@dataclass(frozen=True)
class TaskDescription:
    """Description of a task before its evaluation, or the reason why it cannot be evaluated.

    Attributes:
        task: name of the task.
        key: hash of the task's data and the row limit, `Entry.key`.
        type: task type of mteb.
        language: two-letter languages, separated by "-" or ",".
        main_score: name of the main metric.
        asked: `(prompt name, text)` pairs that the task encodes; empty if the description was read from the log.
        texts: number of these pairs.
        warnings: sentences about left-out rows.
        error: reason why the task cannot be evaluated; None if it can.
    """

    task: str
    key: str
    type: str = ""
    language: str = ""
    main_score: str = ""
    asked: tuple[tuple[str | None, str], ...] = ()
    texts: int = 0
    warnings: tuple[str, ...] = ()
    error: str | None = None


def prepare_process() -> None:
    """Set up a worker process with one thread and without output, which ends when the parent process is gone.

    Progress bars, logs, warnings and stderr are turned off. A background thread waits for the end of the parent.
    """
    warnings.simplefilter("ignore")
    sys.stderr = Path(os.devnull).open("w")  # mteb draws bars that cannot be turned off
    import logging

    import datasets
    import mteb  # noqa: F401  loads what has threads of its own
    import torch
    from threadpoolctl import threadpool_limits

    logging.disable(logging.ERROR)
    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    threadpool_limits(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait until the parent process is gone, then exit this process, which would otherwise wait for jobs forever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@lru_cache(maxsize=1)
def load_task(entry: Entry) -> tuple[Any, tuple[str, ...]]:
    """Load an entry's mteb task, reduced to the row limit, with sentences on left-out rows. The last result is cached.

    The last result is cached. A main score and a task type of the entry replace the task's default.

    Raises:
        EvaluationError: if the data cannot be loaded or are invalid.
    """
    from lathe.training.evaluation.tasks import find_task, limit_rows, load_data

    left_out = Warnings()
    if entry.kind == "mteb":
        task = find_task(entry.place, entry.subsets, entry.splits)
    else:
        task = entry.build_data_set().build_task(left_out)

    load_data(task)
    # A suite may name another metric or type than the task has.
    changes = {"main_score": entry.main_score, "type": entry.type}
    task.metadata = task.metadata.model_copy(update={name: value for name, value in changes.items() if value})

    if entry.limit is not None:
        limit_rows(task, entry.limit)

    return task, tuple(left_out.to_sentences())


def collect_texts(entry: Entry, prompts: Mapping[str, str]) -> TaskDescription:
    """Run a task once on random vectors, and describe it with the texts that it encoded. Exceptions become `error`."""
    from lathe.training.datasets.mteb_tasks import LETTERS
    from lathe.training.evaluation.model import Collector

    try:
        task, left_out = load_task(entry)
        collector = Collector(prompts)
        measure(collector, task)
    except Exception as error:  # mteb and what it stands on raise anything
        reason = str(error) if isinstance(error, EvaluationError) else f"{type(error).__name__}: {error}"
        return TaskDescription(entry.name, entry.key, error=reason)

    meta, asked = task.metadata, tuple(collector.asked)
    language = entry.language or ",".join(LETTERS.get(code, code) for code in meta.languages)
    return TaskDescription(entry.name, entry.key, meta.type, language, meta.main_score, asked, len(asked), left_out)


def score_methods(entry: Entry, member: Member, folder: Path, methods: Sequence[EvaluatedMethod]) -> list[Score]:
    """Score methods on one task with the stored raw vectors of one encoder. An exception becomes `error`.

    Args:
        entry: the task.
        member: the encoder.
        folder: folder of the encoder's raw vectors.
        methods: methods to score. A method with a folder has its chain loaded from there.
    """
    from lathe.training.evaluation.model import RescoringModel, StoredModel

    scores = []
    for method in methods:
        begun = time.monotonic()
        score = describe_cell(entry, member, method)

        try:
            task, _ = load_task(entry)
            vectors = open_vectors(folder, member.dimensions)
            chain = Chain.load(method.folder) if method.folder else method.chain
            model = StoredModel(vectors, member.prompts, member.default_prompt, chain, method.dimensions)
            measured = measure(RescoringModel(model) if method.group == "rescored" else model, task, with_units=True)
        except Exception as error:  # one cell must not stop the others
            score = replace(score, error=f"{type(error).__name__}: {error}")
        else:
            score = replace(score, score=measured.score, metrics=measured.metrics)
            if measured.units is not None:
                values = [round(float(value), 6) for value in measured.units.values]
                score = replace(score, units=measured.units.units, values=values)

        scores.append(replace(score, seconds=round(time.monotonic() - begun, 3)))

    return scores


def describe_cell(entry: Entry, member: Member, method: EvaluatedMethod, error: str | None = None) -> Score:
    """Build a `Score` without a value, of a method on a task with an encoder: not measured yet, or failed."""
    return Score(entry.name, entry.key, member.name, member.output, method.name, method.key, None, error=error)


def open_vectors(folder: Path, dimensions: int) -> TextVectors:
    """Memory-map the vectors of an encoder from a folder. The last result is cached until the file is replaced."""
    return _open_vectors(folder, dimensions, (folder / VECTORS).stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _open_vectors(folder: Path, dimensions: int, written: int) -> TextVectors:
    """Memory-map the vectors of a folder. The file's modification time `written` is only part of the cache's key."""
    return TextVectors.open(folder, dimensions)


@dataclass(frozen=True)
class Measurement:
    """Result of a model on a task: main score, other metrics, and values of single queries, texts or pairs.

    Attributes:
        score: mteb's main score.
        metrics: all scalar metrics of mteb by name, without NaN and without metrics named nauc. With several splits or
            subsets, names begin with `SPLIT.SUBSET.`.
        units: values of single queries, texts or pairs; None if they were not requested, or the task has none, see
            units.py.
    """

    score: float
    metrics: dict[str, float]
    units: "UnitValues | None"


def measure(model: Any, task: Any, with_units: bool = False) -> Measurement:
    """Evaluate a model on a task with mteb, after seeding the task. Raise `EvaluationError` for a NaN score.

    mteb's cache is off, because the results log also has failures and the values of units.

    Args:
        model: model of mteb.
        task: task of mteb, with its data.
        with_units: whether to compute the values of single queries, texts or pairs.
    """
    import mteb

    from lathe.training.evaluation.model import BATCH_ROWS
    from lathe.training.evaluation.units import compute_units, record_units

    # mteb samples with the task's generators: every method must be scored on the same samples.
    task.rng_state, task.np_rng = random.Random(task.seed), np.random.default_rng(task.seed)

    with record_units(task) if with_units else nullcontext() as record:
        results = mteb.evaluate(
            model,
            task,
            cache=None,
            co2_tracker=False,
            show_progress_bar=False,
            encode_kwargs={"batch_size": BATCH_ROWS, "show_progress_bar": False},
            prediction_folder=record if isinstance(record, Path) else None,
        )
        result = results.task_results[0]
        units = None if record is None else compute_units(task, result.scores, record)

    score = float(result.get_score())
    if score != score:
        raise EvaluationError(
            f"the {task.metadata.main_score} of {task.metadata.name} is NaN: all vectors, or all labels, are equal"
        )

    metrics: dict[str, float] = {}
    for split, subsets in result.scores.items():
        for subset in subsets:
            prefix = "" if len(result.scores) == len(subsets) == 1 else f"{split}.{subset['hf_subset']}."
            # NaN is not valid JSON, and nauc metrics are about abstention, which is not compared here.
            metrics |= {
                f"{prefix}{key}": value
                for key, value in subset.items()
                if type(value) in (int, float) and value == value and "nauc" not in key
            }

    return Measurement(score, metrics, units)


Job = tuple[Callable[..., Any], tuple[Any, ...]]
"""A picklable function with picklable arguments."""


class Workers:
    """Pool of single-threaded processes. The processes start at the first job.

    As a context manager, the pool stops the processes at the end of the block.

    Args:
        processes: number of processes.
        set_up: function that each process runs first.
    """

    def __init__(self, processes: int, set_up: Callable[[], object] = prepare_process) -> None:
        self.processes = processes
        self.set_up = set_up
        self.executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel waiting jobs, wait for running ones, and end the processes."""
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        """Run jobs in parallel, and yield `(position, result or exception)` as jobs finish. Lost jobs are retried once.

        If a process dies, its job is retried, and yields an `EvaluationError` if the process dies again. The first
        waiting jobs are retried one at a time, because the pool fails all running jobs when a process dies. The
        remaining jobs then run in parallel again.
        """
        waiting = dict(enumerate(jobs))
        suspects: list[int] = []
        while waiting:
            alone = bool(suspects)
            batch = [suspects.pop(0)] if alone else list(waiting)
            # By `spawn`, since a process with threads must not be forked.
            self.executor = self.executor or ProcessPoolExecutor(
                self.processes, get_context("spawn"), initializer=self.set_up
            )
            futures = {self.executor.submit(waiting[index][0], *waiting[index][1]): index for index in batch}

            for future in as_completed(futures):
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    self.executor = None  # the next jobs start new processes
                    if not alone:
                        # The job that killed a process is most likely among the first that wait.
                        suspects = list(waiting)[: 2 * self.processes]
                        break
                    error = EvaluationError("the scoring process died, most likely because memory ran out")
                del waiting[futures[future]]
                yield futures[future], error or future.result()
