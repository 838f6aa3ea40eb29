"""Scoring processes, whose pool survives the death of one, and their work.

They collect the texts that a task uses and score methods on it.

Each process has one thread, since two processes with one thread do more than one with two. Errors are returned as
messages.
"""

import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context, parent_process
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lathe.training.datasets.records import Warnings
from lathe.training.errors import EvaluationError
from lathe.training.evaluation.encoders import VECTORS, TextVectors
from lathe.training.evaluation.scores import Score, TaskDescription
from lathe.training.evaluation.suites import Entry
from lathe.transforms.chain import Chain

if TYPE_CHECKING:
    from lathe.training.evaluation.units import UnitValues


@dataclass(frozen=True)
class TaskTrial:
    """One task of a suite, with the row limit that it is evaluated with.

    Attributes:
        entry: data set of the suite.
        key: hash of its data and the limit.
        limit: maximum number of rows; None for all.
    """

    entry: Entry
    key: str
    limit: int | None


@dataclass(frozen=True)
class FittedMethod:
    """Reference to a fitted method on disk.

    Attributes:
        name: name of the method.
        key: hash of the fitted map.
        folder: folder of its artifact; None for raw vectors.
        dimensions: dimensions to cut a nested chain to; None for its own.
        rescored: whether a search ranks the chain's candidates again by the raw vectors.
    """

    name: str
    key: str
    folder: Path | None = None
    dimensions: int | None = None
    rescored: bool = False


@dataclass(frozen=True)
class RawVectors:
    """Reference to an encoder's raw vectors in a folder, with what a worker must know of the encoder.

    Attributes:
        name: name of the encoder.
        fingerprint: hash of its output; see `Member.output`.
        dimensions: number of dimensions.
        prompts: prompts of the encoder, by name.
        default_prompt: prompt for tasks that name none.
        folder: folder of the vectors.
    """

    name: str
    fingerprint: str
    dimensions: int
    prompts: Mapping[str, str]
    default_prompt: str | None
    folder: Path


def prepare_process() -> None:
    """Set up a worker process: one thread for torch and BLAS, and no progress bars, logs, warnings or stderr.

    A background thread ends the process when its parent is gone.
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
    """Block until the parent process is gone, then exit this process, which would otherwise wait for jobs forever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@lru_cache(maxsize=1)
def load_trial(trial: TaskTrial) -> tuple[Any, tuple[str, ...]]:
    """Load the mteb task of a trial with its data, reduced to the trial's row limit.

    Returns the task, and sentences about rows that were left out. The last result is cached. The main score and task
    type that the suite gives replace the task's own.

    Raises:
        EvaluationError: if the data cannot be loaded or are invalid.
    """
    from lathe.training.evaluation.tasks import find_task, limit_rows, load_data

    entry, left_out = trial.entry, Warnings()
    if entry.kind == "mteb":
        task = find_task(entry.place, entry.subsets, entry.splits)
    else:
        task = entry.build_data_set().build_task(left_out)

    load_data(task)
    # A suite may name another metric or type than the task has.
    changes = {"main_score": entry.main_score, "type": entry.type}
    task.metadata = task.metadata.model_copy(update={name: value for name, value in changes.items() if value})

    if trial.limit is not None:
        limit_rows(task, trial.limit)

    return task, tuple(left_out.to_sentences())


def collect_texts(trial: TaskTrial, prompts: Mapping[str, str]) -> TaskDescription:
    """Run a task once on random vectors, and return its description.

    The description has the texts that the task encodes and their prompt names. An exception becomes its `error`.
    """
    from lathe.training.datasets.mteb_tasks import LETTERS
    from lathe.training.evaluation.model import Collector

    name = trial.entry.name
    try:
        task, left_out = load_trial(trial)
        collector = Collector(prompts)
        measure(collector, task)
    except EvaluationError as error:
        return TaskDescription(name, trial.key, error=str(error))
    except Exception as error:  # mteb and what it stands on raise anything
        return TaskDescription(name, trial.key, error=f"{type(error).__name__}: {error}")

    meta = task.metadata
    language = trial.entry.language or ",".join(LETTERS.get(code, code) for code in meta.languages)
    prompted_texts = tuple(collector.asked)

    return TaskDescription(
        name, trial.key, meta.type, language, meta.main_score, prompted_texts, len(prompted_texts), left_out
    )


def score_methods(trial: TaskTrial, raw: RawVectors, methods: Sequence[FittedMethod]) -> list[Score]:
    """Score fitted methods on one task with one encoder's raw vectors.

    If a method raises an exception, its score has no value and the message as `error`.
    """
    from lathe.training.evaluation.model import RescoringModel, StoredModel

    scores = []
    for method in methods:
        begun = time.monotonic()
        measured: Measurement | None = None
        problem: str | None = None

        try:
            task, _ = load_trial(trial)
            vectors = open_vectors(raw)
            chain = Chain.load(method.folder) if method.folder else None
            model = StoredModel(
                f"{raw.name}+{method.name}",
                f"{raw.fingerprint}-{method.key}",
                raw.prompts,
                raw.default_prompt,
                vectors,
                chain,
                method.dimensions,
            )
            measured = measure(RescoringModel(model) if method.rescored else model, task, with_units=True)
        except Exception as error:  # one cell must not stop the others
            problem = f"{type(error).__name__}: {error}"

        seconds = round(time.monotonic() - begun, 3)
        cell = (trial.entry.name, trial.key, raw.name, raw.fingerprint, method.name, method.key)
        if measured is None:
            scores.append(Score(*cell, None, seconds=seconds, error=problem))
            continue

        units = measured.units
        values = [] if units is None else [round(float(value), 6) for value in units.values]
        scores.append(
            Score(*cell, measured.score, measured.metrics, seconds, None, units.units if units else 0, values)
        )

    return scores


def open_vectors(raw: RawVectors) -> TextVectors:
    """Memory-map an encoder's vectors, and return them. The last result is cached until its file is replaced."""
    return _open_vectors(raw.folder, raw.dimensions, (raw.folder / VECTORS).stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _open_vectors(folder: Path, dimensions: int, written: int) -> TextVectors:
    """Memory-map the vectors of a folder; the file's time `written` is only part of the cache's key."""
    return TextVectors.open(folder, dimensions)


@dataclass(frozen=True)
class Measurement:
    """Result of a model on a task: main score, other metrics, and values of single queries, texts or pairs.

    Attributes:
        score: mteb's main score.
        metrics: all scalar metrics of mteb by name, without NaN and without those named nauc. With several splits or
            subsets, names begin with `SPLIT.SUBSET.`.
        units: values of the single queries, texts or pairs; None if not asked for or if the task has none, see
            units.py.
    """

    score: float
    metrics: dict[str, float]
    units: "UnitValues | None"


def measure(model: Any, task: Any, with_units: bool = False) -> Measurement:
    """Evaluate a model on a task with mteb.

    The task's random state is reset to its seed first. mteb's cache of results is off, because `scores.py` keeps the
    results.

    Args:
        model: model of mteb.
        task: task of mteb, with its data.
        with_units: whether to compute the values of units.

    Returns:
        The main score, all other metrics and, with `with_units`, the values of single queries, texts or pairs.

    Raises:
        EvaluationError: if the main score is NaN.
    """
    import mteb

    from lathe.training.evaluation.model import BATCH_ROWS
    from lathe.training.evaluation.units import UnitRecorder

    # mteb draws from the task's generators: every method must meet the same draws.
    task.rng_state, task.np_rng = random.Random(task.seed), np.random.default_rng(task.seed)
    recorder = UnitRecorder(task)

    with recorder.record() if with_units else nullcontext() as predictions:
        results = mteb.evaluate(
            model,
            task,
            cache=None,
            co2_tracker=False,
            show_progress_bar=False,
            encode_kwargs={"batch_size": BATCH_ROWS, "show_progress_bar": False},
            prediction_folder=predictions,
        )
        result = results.task_results[0]
        subsets = [subset for split_scores in result.scores.values() for subset in split_scores]
        units = recorder.compute(subsets[0], predictions) if with_units and len(subsets) == 1 else None

    score = float(result.get_score())
    if score != score:
        raise EvaluationError(
            f"the {task.metadata.main_score} is not a number: the vectors, or the labels, are all alike"
        )

    metrics: dict[str, float] = {}
    for split, subsets in result.scores.items():
        for subset in subsets:
            prefix = "" if len(result.scores) == len(subsets) == 1 else f"{split}.{subset['hf_subset']}."
            metrics |= {f"{prefix}{key}": value for key, value in subset.items() if type(value) in (int, float)}

    # NaN is no JSON, and nauc metrics are about abstention, which is not compared here.
    metrics = {key: value for key, value in metrics.items() if value == value and "nauc" not in key}
    return Measurement(score, metrics, units)


Job = tuple[Callable[..., Any], tuple[Any, ...]]
"""Function and its arguments, all picklable."""


class Workers:
    """Pool of single-threaded processes, started at the first job.

    As a context manager, it stops the processes at the end of the block.

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

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Cancel waiting jobs, wait for running ones, and end the processes.

        Jobs that are submitted later start new processes.
        """
        if self.executor is not None:
            self.executor.shutdown(wait=True, cancel_futures=True)
            self.executor = None

    def _submit(self, job: Job) -> Future[Any]:
        """Submit a job to the pool, which is started by `spawn`, since a process with threads must not be forked."""
        if self.executor is None:
            self.executor = ProcessPoolExecutor(self.processes, get_context("spawn"), initializer=self.set_up)
        work, arguments = job
        return self.executor.submit(work, *arguments)

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        """Run jobs in parallel processes, and yield each job's position in `jobs` with its result or exception.

        They come in the order in which the jobs finish. If a process dies, the pool fails the jobs of all processes.
        The first waiting jobs are then retried alone: one whose process dies again yields an `EvaluationError`, and the
        remaining jobs run in parallel again.
        """
        waiting = dict(enumerate(jobs))
        while waiting:
            for index, result in self._run_parallel(waiting):
                del waiting[index]
                yield index, result
            # The job that killed a process is most likely among the first that wait.
            for index in list(waiting)[: 2 * self.processes]:
                yield index, self._run_alone(waiting.pop(index))

    def _run_parallel(self, jobs: dict[int, Job]) -> Iterator[tuple[int, Any]]:
        """Run jobs in parallel, and yield each job's key with its result or the exception it raised.

        If a process dies, the iteration ends early, the remaining jobs have no result, and the next job starts new
        processes.
        """
        futures = {self._submit(job): index for index, job in jobs.items()}
        for future in as_completed(futures):
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                self.executor = None
                return
            yield futures[future], error or future.result()

    def _run_alone(self, job: Job) -> Any:
        """Run one job while no other runs, and return its result or the exception it raised.

        If the process dies, an `EvaluationError` is returned, and the next job starts new processes.
        """
        future = self._submit(job)
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            self.executor = None
            return EvaluationError("the process that worked on it died; most likely memory ran out")
        return error or future.result()
