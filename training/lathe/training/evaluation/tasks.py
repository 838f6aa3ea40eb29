"""Tasks and benchmarks of mteb by name, with their data, before and while they are evaluated.

Only worker processes import this module: importing mteb takes seconds, and it prints progress bars.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Any

import mteb
import numpy as np
from mteb.abstasks import AbsTask, AbsTaskRetrieval
from mteb.abstasks.aggregated_task import AbsTaskAggregate

from lathe.training.errors import DataSetError, EvaluationError


def find_task(name: str, subsets: Sequence[str] = (), splits: Sequence[str] = ()) -> AbsTask:
    """Return the mteb task with this name, restricted to these subsets and splits. Its data is not loaded yet.

    Args:
        name: name of the task in mteb.
        subsets: subsets of its data; empty for all.
        splits: splits to evaluate on; empty for the task's own.

    Raises:
        EvaluationError: if mteb does not know the name, or the task is an aggregate of others.
    """
    try:
        task = mteb.get_task(name, hf_subsets=list(subsets) or None, eval_splits=list(splits) or None)
    except KeyError as error:
        raise EvaluationError(f"mteb: {str(error.args[0]).removeprefix('KeyError: ')}") from error

    if isinstance(task, AbsTaskAggregate):
        parts = ", ".join(part.metadata.name for part in task.metadata.tasks)
        raise EvaluationError(f"{name} is made of other tasks; name those: {parts}")

    return task


def list_tasks(name: str) -> list[AbsTask]:
    """Return the tasks of the mteb benchmark with this name, or a list with the one task of this name.

    A benchmark's tasks have the subsets and splits that the benchmark uses.

    Raises:
        EvaluationError: if mteb does not know the name.
    """
    try:
        return list(mteb.get_benchmark(name).tasks)
    except KeyError:
        return [find_task(name)]


def load_data(task: AbsTask) -> AbsTask:
    """Load the data of an mteb task in place, unless it is loaded already, and return the task.

    A search in mteb's old format is converted to the new one.

    Raises:
        DataSetError: if the data cannot be loaded.
    """
    if task.data_loaded:
        return task

    try:
        task.load_data()
    except DataSetError:
        raise
    except Exception as error:  # the hub's client raises anything: no network, no such set, no rights
        raise DataSetError(f"the data of {task.metadata.name} cannot be loaded: {error}") from error

    if isinstance(task, AbsTaskRetrieval):
        task.convert_v1_dataset_format_to_v2(num_proc=None)

    return task


def reset_random_state(task: AbsTask) -> None:
    """Reset a task's random generators to its seed, so that what it samples is the same for every method."""
    task.rng_state, task.np_rng = random.Random(task.seed), np.random.default_rng(task.seed)


def iterate_splits(task: AbsTask) -> Iterable[tuple[dict[str, Any], str]]:
    """Yield each evaluated split of each subset of a task, as the dict that holds the split and its key there.
    Assigning to that key replaces the split.
    """
    data: Any = task.dataset
    for split in task.eval_splits:
        for subset in task.hf_subsets:
            yield (data[subset] if subset in data else data), split
