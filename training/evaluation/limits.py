"""The same few rows of a data set each time.

A larger limit holds the rows of a smaller one, but for searches, where it makes room for other queries. What is
capped is what is evaluated: test rows, pairs, queries, documents; and of training rows as many, spread evenly over
the labels.
"""

from typing import Any

import numpy as np
from datasets import Dataset
from mteb.abstasks import AbsTask, AbsTaskClassification, AbsTaskClustering, AbsTaskPairClassification, AbsTaskRetrieval
from mteb.abstasks.clustering_legacy import AbsTaskClusteringLegacy

from training.errors import DataSetError
from training.evaluation.tasks import splits_of


def limit_rows(task: AbsTask, rows: int) -> None:
    """Cap a loaded task in place.

    Raises:
        DataSetError: if not one query fits with all its relevant documents.
    """
    if isinstance(task, AbsTaskRetrieval):
        for holder, split in splits_of(task):
            holder[split] = capped_search(holder[split], rows, task.seed)
        return
    for holder, split in splits_of(task):
        if isinstance(task, AbsTaskPairClassification) and len(holder[split]) == 1:
            holder[split] = Dataset.from_dict(holder[split][0])  # older data sets hold all pairs in one row
        lists = isinstance(task, AbsTaskClusteringLegacy | AbsTaskClustering) and holds_lists(holder[split])
        holder[split] = (capped_lists if lists else capped)(holder[split], rows, task.seed)
        if isinstance(task, AbsTaskClassification) and task.train_split != split:
            train = holder[task.train_split]
            kept = evenly(list(train[task.label_column_name]), rows, task.seed)
            holder[task.train_split] = train.select(kept)


def shuffled(rows: int, seed: int) -> list[int]:
    """All row numbers, in an order that the seed alone decides."""
    order: list[int] = np.random.default_rng(seed).permutation(rows).tolist()
    return order


def capped(data: Dataset, rows: int, seed: int) -> Dataset:
    """The first rows of a shuffled data set, in their own order."""
    return data if len(data) <= rows else data.select(sorted(shuffled(len(data), seed)[:rows]))


def holds_lists(data: Dataset) -> bool:
    """Whether each row is a clustering of its own: a list of texts with a list of labels."""
    return len(data) > 0 and all(isinstance(value, list) for value in data[0].values())


def capped_lists(data: Dataset, rows: int, seed: int) -> Dataset:
    """Every row with its share of the limit, its lists cut alike."""
    share = max(1, rows // len(data))

    def cut(row: dict[str, list[Any]]) -> dict[str, list[Any]]:
        length = min(len(value) for value in row.values())
        kept = sorted(shuffled(length, seed)[:share])
        return {name: [value[index] for index in kept] for name, value in row.items()}

    return data.map(cut, keep_in_memory=True)


def evenly(labels: list[Any], rows: int, seed: int) -> list[int]:
    """Row numbers, one of each label in turn until there are enough."""
    if len(labels) <= rows:
        return list(range(len(labels)))
    by_label: dict[Any, list[int]] = {}
    for row in shuffled(len(labels), seed):
        by_label.setdefault(str(labels[row]), []).append(row)
    turns = [(turn, row) for found in by_label.values() for turn, row in enumerate(found)]
    return sorted(row for _, row in sorted(turns, key=lambda pair: pair[0])[:rows])


def capped_search(data: Any, rows: int, seed: int) -> Any:
    """As many queries as fit with their relevant documents, and other documents up to the limit.

    Where documents are given to choose from (reranking), only those of the kept queries remain, and the limit is one
    of queries.
    """
    relevant, ranked = data["relevant_docs"], data["top_ranked"]
    ids = list(data["queries"]["id"])
    chosen: list[int] = []
    documents: set[str] = set()
    for index in shuffled(len(ids), seed):
        wanted = {key for key, grade in relevant.get(ids[index], {}).items() if grade > 0}
        if ranked is None and len(documents | wanted) > rows:
            continue
        if len(chosen) < rows and wanted:
            chosen.append(index)
            documents |= wanted if ranked is None else set(ranked[ids[index]])
    if not chosen:
        raise DataSetError(f"no query has its relevant documents within a limit of {rows}")
    corpus = list(data["corpus"]["id"])
    if ranked is None:
        others = [row for row in shuffled(len(corpus), seed) if corpus[row] not in documents]
        documents |= {corpus[row] for row in others[: rows - len(documents)]}
    queries = {ids[index] for index in chosen}
    return data | {
        "queries": data["queries"].select(sorted(chosen)),
        "corpus": data["corpus"].select([row for row, key in enumerate(corpus) if key in documents]),
        "relevant_docs": {
            query: {key: grade for key, grade in judged.items() if key in documents}
            for query, judged in relevant.items()
            if query in queries
        },
        "top_ranked": None if ranked is None else {query: ranked[query] for query in ranked if query in queries},
    }
