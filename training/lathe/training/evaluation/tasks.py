"""Tasks and benchmarks of mteb by name, and their data reduced to a row limit.

A row limit selects the same subset of a data set in every run. The subset of a larger limit contains the subset of a
smaller limit, except for searches, where a larger limit has room for other queries. The limit applies to evaluated rows
(test rows, pairs, queries, documents), and to training rows, which are spread evenly over the labels.

Only worker processes import this module: importing mteb takes seconds, and it prints progress bars.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import mteb
import numpy as np
from datasets import Dataset
from mteb.abstasks import AbsTask, AbsTaskClassification, AbsTaskClustering, AbsTaskPairClassification, AbsTaskRetrieval
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.abstasks.clustering_legacy import AbsTaskClusteringLegacy

from lathe.training.errors import DataSetError, EvaluationError


def find_task(name: str, subsets: Sequence[str] = (), splits: Sequence[str] = ()) -> AbsTask:
    """Find the mteb task with this name, for these subsets and splits, without its data. Aggregates of tasks raise.

    Args:
        name: name of the task in mteb.
        subsets: subsets of the task's data; empty for all subsets.
        splits: splits to evaluate on; empty for the task's default splits.

    Raises:
        EvaluationError: if mteb does not know the name, or the task is an aggregate of other tasks.
    """
    try:
        task = mteb.get_task(name, hf_subsets=list(subsets) or None, eval_splits=list(splits) or None)
    except KeyError as error:
        raise EvaluationError(f"mteb: {str(error.args[0]).removeprefix('KeyError: ')}") from error

    if isinstance(task, AbsTaskAggregate):
        parts = ", ".join(part.metadata.name for part in task.metadata.tasks)
        raise EvaluationError(f"{name} is an aggregate of other tasks: name these tasks instead: {parts}")

    return task


def list_tasks(name: str) -> list[AbsTask]:
    """List the tasks of the mteb benchmark with this name, or the single task with this name.

    The tasks of a benchmark have the subsets and splits of the benchmark.

    Raises:
        EvaluationError: if mteb knows neither a benchmark nor a task of this name, or the task is an aggregate.
    """
    try:
        return list(mteb.get_benchmark(name).tasks)
    except KeyError:
        return [find_task(name)]


def load_data(task: AbsTask) -> None:
    """Load the data of an mteb task in place, unless loaded already. Raise `DataSetError` if this fails.

    A search in mteb's old format is converted to the new format.

    Raises:
        DataSetError: if the data cannot be loaded.
    """
    if task.data_loaded:
        return

    try:
        task.load_data()
    except DataSetError:
        raise
    except Exception as error:  # the hub's client raises anything: no network, no such set, no rights
        raise DataSetError(f"the data of {task.metadata.name} cannot be loaded: {error}") from error

    if isinstance(task, AbsTaskRetrieval):
        task.convert_v1_dataset_format_to_v2(num_proc=None)


def iterate_splits(task: AbsTask) -> Iterable[tuple[dict[str, Any], str]]:
    """Yield `(dict, key)` for each evaluated split of each subset of a task: `dict[key]` holds the split.

    An assignment to `dict[key]` replaces the split in the task.
    """
    data: Any = task.dataset
    for split in task.eval_splits:
        for subset in task.hf_subsets:
            yield (data[subset] if subset in data else data), split


BINARY = 2
"""Number of labels of a binary task."""


def limit_rows(task: AbsTask, rows: int) -> None:
    """Reduce a loaded mteb task in place to at most `rows` random rows per split. Raise if no query of a search fits.

    The choice depends on the task's seed and is the same in every run. By type of task:

    - Search: at most `rows` documents, and at most `rows` queries, with all their relevant documents.
    - Reranking: at most `rows` queries with all their candidates.
    - Clustering with a list of texts in each row: all rows, with shorter lists.
    - Classification: training rows are also reduced to `rows`, spread evenly over the labels.
    - Pair classification: if all pairs are lists in a single row, they first become one row each.

    Raises:
        DataSetError: if no query of a search fits into the limit with all its relevant documents.
    """
    if isinstance(task, AbsTaskRetrieval):
        for holder, split in iterate_splits(task):
            holder[split] = _limit_search(holder[split], rows, task.seed)
        return

    for holder, split in iterate_splits(task):
        if isinstance(task, AbsTaskPairClassification) and len(holder[split]) == 1:
            holder[split] = Dataset.from_dict(holder[split][0])  # older data sets hold all pairs in one row

        # Each row of some data sets is a clustering of its own, with lists of texts and labels.
        of_clusterings = isinstance(task, AbsTaskClusteringLegacy | AbsTaskClustering) and len(holder[split]) > 0
        if of_clusterings and all(isinstance(value, list) for value in holder[split][0].values()):
            holder[split] = _limit_lists(holder[split], rows, task.seed)
        elif isinstance(task, AbsTaskClassification):
            chosen_rows = _choose_labelled(list(holder[split][task.label_column_name]), rows, task.seed)
            holder[split] = holder[split].select(chosen_rows)
        elif len(holder[split]) > rows:
            holder[split] = holder[split].select(sorted(_shuffle_rows(len(holder[split]), task.seed)[:rows]))

        if isinstance(task, AbsTaskClassification) and task.train_split != split:
            train = holder[task.train_split]
            kept_rows = _choose_evenly(list(train[task.label_column_name]), rows, task.seed)
            holder[task.train_split] = train.select(kept_rows)


def _shuffle_rows(rows: int, seed: int) -> list[int]:
    order: list[int] = np.random.default_rng(seed).permutation(rows).tolist()
    return order


def _limit_lists(data: Dataset, rows: int, seed: int) -> Dataset:
    """Shorten the lists in every row of a clustering data set to `rows // len(data)` items, but at least one item.

    In a row, the items at the same random positions of all lists are kept, in their order. Items beyond the end of the
    row's shortest list are never kept. All rows are kept.
    """
    share = max(1, rows // len(data))

    def cut(row: dict[str, list[Any]]) -> dict[str, list[Any]]:
        length = min(len(value) for value in row.values())
        positions = sorted(_shuffle_rows(length, seed)[:share])
        return {name: [value[index] for index in positions] for name, value in row.items()}

    return data.map(cut, keep_in_memory=True)


def _choose_labelled(labels: list[Any], rows: int, seed: int) -> list[int]:
    """Choose at most `rows` row numbers at random, in ascending order, with three different labels if possible.

    If all chosen rows had one of two labels, mteb would take the task for a binary task, and fail if the labels are not
    0 and 1.
    """
    order = _shuffle_rows(len(labels), seed)
    first_rows: dict[str, int] = {}
    for row in order:
        first_rows.setdefault(str(labels[row]), row)
    preferred = dict.fromkeys([*list(first_rows.values())[: BINARY + 1], *order])
    return sorted(list(preferred)[:rows])


def _choose_evenly(labels: list[Any], rows: int, seed: int) -> list[int]:
    """Choose at most `rows` row numbers at random, spread evenly over the labels, in ascending order."""
    if len(labels) <= rows:
        return list(range(len(labels)))

    by_label: dict[Any, list[int]] = {}
    for row in _shuffle_rows(len(labels), seed):
        by_label.setdefault(str(labels[row]), []).append(row)

    # The i-th row of each label belongs to round i: sorting by round takes the labels alternately.
    rounds = [(round_number, row) for label_rows in by_label.values() for round_number, row in enumerate(label_rows)]
    return sorted(row for _, row in sorted(rounds, key=lambda pair: pair[0])[:rows])


def _limit_search(data: Any, rows: int, seed: int) -> Any:
    """Return a search split with at most `rows` random queries and their documents. Raise if no query fits the limit.

    There are at most `rows` documents. In reranking, the candidates of the chosen queries are kept instead, however
    many there are.

    Raises:
        DataSetError: if no query has all its relevant documents within the limit.
    """
    relevant, ranked = data["relevant_docs"], data["top_ranked"]
    ids = list(data["queries"]["id"])
    chosen_queries: list[int] = []
    documents: set[str] = set()

    for index in _shuffle_rows(len(ids), seed):
        relevant_ids = {key for key, grade in relevant.get(ids[index], {}).items() if grade > 0}
        # A query with a relevant document outside the corpus would score lower with any method.
        if ranked is None and len(documents | relevant_ids) > rows:
            continue
        if len(chosen_queries) < rows and relevant_ids:
            chosen_queries.append(index)
            documents |= relevant_ids if ranked is None else set(ranked[ids[index]])

    if not chosen_queries:
        raise DataSetError(f"no query has all its relevant documents within a limit of {rows} rows: raise the limit")

    corpus = list(data["corpus"]["id"])
    if ranked is None:
        other_rows = [row for row in _shuffle_rows(len(corpus), seed) if corpus[row] not in documents]
        documents |= {corpus[row] for row in other_rows[: rows - len(documents)]}

    queries = {ids[index] for index in chosen_queries}
    return data | {
        "queries": data["queries"].select(sorted(chosen_queries)),
        "corpus": data["corpus"].select([row for row, key in enumerate(corpus) if key in documents]),
        "relevant_docs": {
            query: {key: grade for key, grade in judged.items() if key in documents}
            for query, judged in relevant.items()
            if query in queries
        },
        "top_ranked": None if ranked is None else {query: ranked[query] for query in ranked if query in queries},
    }
