"""What worker processes do: learn which texts a task needs, and score methods on it.

Each has one thread: two processes of one do more than one of two. What goes wrong comes back as a sentence.
"""

import os
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from training.errors import EvaluationError
from training.evaluation.layouts import READERS
from training.evaluation.records import Warnings
from training.evaluation.scores import Collected, Score
from training.evaluation.store import VECTORS, VectorStore
from training.evaluation.suites import Entry
from transforms.chain import Chain


@dataclass(frozen=True)
class Trial:
    """A task as it is evaluated: which rows of it.

    Attributes:
        entry: the data set.
        key: hash of its data and the limit.
        limit: None for all rows.
    """

    entry: Entry
    key: str
    limit: int | None


@dataclass(frozen=True)
class FittedMethod:
    """A method as it lies on disk.

    Attributes:
        name: of the method.
        key: hash of the fitted map.
        folder: of its artifact; None for raw vectors.
        dimensions: a size to cut to; None for its own.
    """

    name: str
    key: str
    folder: Path | None = None
    dimensions: int | None = None


@dataclass(frozen=True)
class Raw:
    """An encoder's stored output.

    Attributes:
        name: of the encoder.
        fingerprint: of the output; see `Member.output`.
        dimensions: of it.
        prompts: of the encoder.
        default_prompt: put before texts where a task names no prompt.
        folder: of the vectors.
    """

    name: str
    fingerprint: str
    dimensions: int
    prompts: Mapping[str, str]
    default_prompt: str | None
    folder: Path


def set_up() -> None:
    """One thread, no bars, no chatter."""
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
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """End this process when the one that started it was killed, which would leave it waiting for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@lru_cache(maxsize=1)
def loaded(trial: Trial) -> tuple[Any, tuple[str, ...]]:
    """A task with its data, capped, and what was left out of it.

    Raises:
        EvaluationError: if it cannot be had.
    """
    from training.evaluation.hub import read_hub
    from training.evaluation.limits import limit_rows
    from training.evaluation.tasks import hub_search, load, local_task, named_task

    entry, found = trial.entry, Warnings()
    if entry.kind == "folder":
        data = READERS[entry.task](Path(entry.place), found)
        task = local_task(entry.name, entry.task, entry.language, data)
    elif entry.kind == "mteb":
        task = named_task(entry.place, entry.subsets, entry.splits)
    elif entry.task == "retrieval":
        source = {"path": entry.place, "revision": entry.revision}
        task = hub_search(entry.name, entry.language, source, entry.split)
    else:
        task = local_task(entry.name, entry.task, entry.language, read_hub(entry, found))
    load(task)
    changes = {"main_score": entry.main_score, "type": entry.type}
    task.metadata = task.metadata.model_copy(update={name: value for name, value in changes.items() if value})
    if trial.limit is not None:
        limit_rows(task, trial.limit)
    return task, tuple(found.sentences())


def collect(trial: Trial, prompts: Mapping[str, str]) -> Collected:
    """The texts a task asks an encoder for; it is run once on random vectors."""
    from training.evaluation.model import Collector
    from training.evaluation.tasks import LETTERS

    name = trial.entry.name
    try:
        task, left_out = loaded(trial)
        collector = Collector(prompts)
        measure(collector, task)
    except EvaluationError as error:
        return Collected(name, trial.key, error=str(error))
    except Exception as error:  # mteb and what it stands on raise anything
        return Collected(name, trial.key, error=f"{type(error).__name__}: {error}")
    meta = task.metadata
    language = trial.entry.language or ",".join(LETTERS.get(code, code) for code in meta.languages)
    asked = tuple(collector.asked)
    return Collected(name, trial.key, meta.type, language, meta.main_score, asked, len(asked), left_out)


def score_methods(trial: Trial, raw: Raw, methods: Sequence[FittedMethod]) -> list[Score]:
    """A task's score for each method on one encoder's vectors."""
    from training.evaluation.model import StoredModel

    found = []
    for method in methods:
        begun = time.monotonic()
        value: float | None = None
        metrics: dict[str, float] = {}
        problem: str | None = None
        try:
            task, _ = loaded(trial)
            store = opened(raw)
            chain = Chain.load(method.folder) if method.folder else None
            model = StoredModel(
                f"{raw.name}+{method.name}",
                f"{raw.fingerprint}-{method.key}",
                raw.prompts,
                raw.default_prompt,
                store,
                chain,
                method.dimensions,
            )
            value, metrics = measure(model, task)
        except Exception as error:  # one cell must not stop the others
            problem = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - begun
        cell = (trial.entry.name, trial.key, raw.name, raw.fingerprint, method.name, method.key)
        found.append(Score(*cell, value, metrics, round(seconds, 3), problem))
    return found


STORES: dict[Path, tuple[int, VectorStore]] = {}
"""The store a process read last, with the size it had: they only grow."""


def opened(raw: Raw) -> VectorStore:
    """An encoder's store, read once as long as nothing is added to it."""
    size = (raw.folder / VECTORS).stat().st_size
    if STORES.get(raw.folder, (0, None))[0] != size:
        STORES.clear()
        STORES[raw.folder] = size, VectorStore(raw.folder, raw.dimensions)
    return STORES[raw.folder][1]


def measure(model: Any, task: Any) -> tuple[float, dict[str, float]]:
    """The main score of a model on a task, and all single numbers that mteb measured besides.

    Its own cache of results stays off: what is kept is kept by `scores.py`.

    Raises:
        EvaluationError: if the score is not a number.
    """
    import mteb

    from training.evaluation.model import BATCH_ROWS
    from training.evaluation.tasks import begin_anew

    begin_anew(task)
    results = mteb.evaluate(
        model,
        task,
        cache=None,
        co2_tracker=False,
        show_progress_bar=False,
        encode_kwargs={"batch_size": BATCH_ROWS, "show_progress_bar": False},
    )
    result = results.task_results[0]
    score = float(result.get_score())
    if score != score:
        raise EvaluationError(
            f"the {task.metadata.main_score} is not a number: the vectors, or the labels, are all alike"
        )
    metrics: dict[str, float] = {}
    for split, subsets in result.scores.items():
        for subset in subsets:
            place = "" if len(result.scores) == len(subsets) == 1 else f"{split}.{subset['hf_subset']}."
            metrics |= {f"{place}{key}": value for key, value in subset.items() if type(value) in (int, float)}
    return score, {key: value for key, value in metrics.items() if value == value and "nauc" not in key}
