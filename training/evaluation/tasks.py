"""Data sets as mteb tasks, so that the metrics are mteb's.

Only worker processes import this: mteb takes seconds and draws bars of its own.
"""

import random
from collections.abc import Iterable
from typing import Any

import mteb
import numpy as np
from datasets import Dataset, DatasetDict
from mteb.abstasks import (
    AbsTask,
    AbsTaskBitextMining,
    AbsTaskClassification,
    AbsTaskClustering,
    AbsTaskPairClassification,
    AbsTaskRetrieval,
    AbsTaskSTS,
    AbsTaskSummarization,
)
from mteb.abstasks.task_metadata import TaskMetadata

from training.errors import DataSetError, EvaluationError
from training.evaluation.layouts import Columns, Search, Tables

RANKS = (1, 3, 5, 10, 20, 100)
"""Of the measures of a search; mteb's own go to 1,000, which no local corpus needs."""
RERANKED = (*RANKS, 1000)
"""mteb's main score of reranking looks at a thousand places."""


class Classification(AbsTaskClassification):
    """mteb's, with the labels in memory: as they come, every metric reads them row by row, ten times as long."""

    def _calculate_scores(self, y_test: Any, y_pred: Any) -> Any:
        return super()._calculate_scores(np.asarray(y_test[:]), y_pred)


LANGUAGES = {
    "ar": "arb-Arab",
    "de": "deu-Latn",
    "en": "eng-Latn",
    "es": "spa-Latn",
    "fr": "fra-Latn",
    "hi": "hin-Deva",
    "it": "ita-Latn",
    "ja": "jpn-Jpan",
    "ko": "kor-Hang",
    "nl": "nld-Latn",
    "pl": "pol-Latn",
    "pt": "por-Latn",
    "ru": "rus-Cyrl",
    "tr": "tur-Latn",
    "zh": "cmn-Hans",
}
"""How mteb writes a language."""
UNSAID = "und-Latn"
"""Any other: without one mteb scores nothing."""

TYPES: dict[str, tuple[type[AbsTask], str, str]] = {
    "retrieval": (AbsTaskRetrieval, "Retrieval", "ndcg_at_10"),
    "reranking": (AbsTaskRetrieval, "Reranking", "map_at_1000"),
    "pairs": (AbsTaskRetrieval, "Retrieval", "ndcg_at_10"),
    "classification": (Classification, "Classification", "accuracy"),
    "clustering": (AbsTaskClustering, "Clustering", "v_measure"),
    "sts": (AbsTaskSTS, "STS", "cosine_spearman"),
    "pair_classification": (AbsTaskPairClassification, "PairClassification", "max_ap"),
    "translations": (AbsTaskBitextMining, "BitextMining", "f1"),
    "summarization": (AbsTaskSummarization, "Summarization", "cosine_spearman"),
}
"""By the task of a data set: what evaluates it, mteb's name of the type, its main score."""


def local_task(name: str, task: str, language: str, data: Tables | Search) -> AbsTask:
    """A data set read from a folder."""
    found = task_class(name, task, language, local_attributes(task, data), {"path": name, "revision": "local"})()
    found.dataset = search_data(data) if isinstance(data, Search) else table_data(data)
    found.data_loaded = True
    return found


def local_attributes(task: str, data: Tables | Search) -> dict[str, Any]:
    """What an evaluator must know of our columns."""
    if isinstance(data, Search):
        return {"k_values": RERANKED if task == "reranking" else RANKS}
    rows = len(next(iter(data.splits["test"].values())))
    if task == "clustering":  # all of them, drawn anew with replacement for each of ten clusterings
        sampled = {"max_fraction_of_documents_to_embed": None, "max_documents_per_cluster": rows}
        return {"input_column_name": "text", "label_column_name": "label"} | sampled
    if task == "pair_classification":
        return {"label_column_name": "label"}
    if task == "summarization":
        grades = [grade for row in data.splits["test"]["relevance"] for grade in row]
        return {"min_score": min(grades), "max_score": max(max(grades), min(grades) + 1)}
    if task == "sts":
        scores = data.splits["test"]["score"]
        return {"min_score": min(scores), "max_score": max(scores)}
    return {}


def task_class(
    name: str, task: str, language: str, attributes: dict[str, Any], source: dict[str, str]
) -> type[AbsTask]:
    """A class as mteb wants one for each data set."""
    base, kind, main_score = TYPES[task]
    tags = [LANGUAGES[part] for part in language.split("-") if part in LANGUAGES]
    metadata = TaskMetadata(
        dataset=source,  # type: ignore[arg-type]
        name=name,
        description=name,
        type=kind,  # type: ignore[arg-type]
        category="t2c" if kind in ("Classification", "Clustering") else "t2t",
        eval_splits=["test"],
        eval_langs=tags or [UNSAID],
        main_score=main_score,
    )
    return type("LocalTask", (base,), {"metadata": metadata} | attributes)


def table_data(data: Tables) -> DatasetDict:
    """Columns as mteb takes them."""
    return DatasetDict({split: Dataset.from_dict(found) for split, found in data.splits.items()})


def search_data(data: Search) -> dict[str, Any]:
    """A corpus with its queries as mteb takes them."""
    corpus: Columns = {"id": [], "title": [], "text": []}
    for key, (title, text) in data.corpus.items():
        corpus["id"].append(key)
        corpus["title"].append(title)
        corpus["text"].append(text)
    queries = {"id": list(data.queries), "text": list(data.queries.values())}
    split = {
        "corpus": Dataset.from_dict(corpus),
        "queries": Dataset.from_dict(queries),
        "relevant_docs": {query: dict(judged) for query, judged in data.relevant.items()},
        "top_ranked": data.ranked,
    }
    return {"default": {"test": split}}


def named_task(name: str) -> AbsTask:
    """A task of mteb's own, its data taken from the hub or its cache.

    Raises:
        EvaluationError: for a name that mteb does not know.
    """
    try:
        return mteb.get_task(name)
    except KeyError as error:
        raise EvaluationError(f"mteb: {str(error.args[0]).removeprefix('KeyError: ')}") from error


def names_of(name: str) -> list[str]:
    """The tasks of a benchmark, or the one of that name.

    Raises:
        EvaluationError: for a name that mteb does not know.
    """
    known = {benchmark.name: benchmark for benchmark in mteb.get_benchmarks()}
    if name in known:
        return [task.metadata.name for task in known[name].tasks]
    return [named_task(name).metadata.name]


def hub_task(
    name: str, task: str, language: str, source: dict[str, str], columns: dict[str, str], split: str
) -> AbsTask:
    """A data set of the hub, its columns called as ours are.

    Args:
        name: what it is called.
        task: its layout.
        language: of its texts.
        source: path and revision.
        columns: theirs, by ours, where they differ.
        split: the one to evaluate on.

    Raises:
        DataSetError: where a column is missing.
    """

    def renamed(self: AbsTask, num_proc: int | None = None, **_: Any) -> None:
        if not isinstance(self.dataset, DatasetDict):
            return
        for part, rows in self.dataset.items():
            missing = [theirs for theirs in columns.values() if theirs not in rows.column_names]
            if missing:
                raise DataSetError(f"{source['path']} has no column {missing[0]!r}; it has {rows.column_names}")
            others = [column for column in columns if column in rows.column_names and columns[column] != column]
            renames = {theirs: ours for ours, theirs in columns.items() if theirs != ours}
            rows = rows.remove_columns(others).rename_columns(renames)
            self.dataset[part] = flattened(rows) if task == "clustering" else rows

    attributes: dict[str, Any] = {"dataset_transform": renamed}
    if task in ("classification", "clustering"):
        attributes |= {"label_column_name": "label"}
    if task == "clustering":
        attributes |= {"input_column_name": "text", "max_fraction_of_documents_to_embed": None}
    if task == "pair_classification":
        attributes |= {"label_column_name": "label"}
    if task == "summarization" and "summary" in columns:  # one summary with a score: pairs with a similarity
        attributes |= {"column_names": ("text", "summary"), "min_score": 0, "max_score": 1}
        found = task_class(name, "sts", language, attributes, source)
        found.metadata = found.metadata.model_copy(update={"type": "Summarization"})
    else:
        found = task_class(name, task, language, attributes, source)
    found.metadata = found.metadata.model_copy(update={"eval_splits": [split]})
    return found()


def flattened(rows: Dataset) -> Dataset:
    """Texts and labels a row each, where a row holds lists of them."""
    if not len(rows) or not isinstance(rows[0]["text"], list):
        return rows
    texts = [text for row in rows for text in row["text"]]
    labels = [str(label) for row in rows for label in row["label"]]
    return Dataset.from_dict({"text": texts, "label": labels})


def load(task: AbsTask) -> AbsTask:
    """The task with its data.

    Raises:
        DataSetError: if they cannot be had.
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


def begin_anew(task: AbsTask) -> None:
    """Seed a task again: what it draws must be the same for every method, or they are not paired."""
    task.rng_state, task.np_rng = random.Random(task.seed), np.random.default_rng(task.seed)


def splits_of(task: AbsTask) -> Iterable[tuple[dict[str, Any], str]]:
    """Each split to evaluate on, as the mapping that holds it and its name there."""
    data: Any = task.dataset
    for split in task.eval_splits:
        for subset in task.hf_subsets:
            yield (data[subset] if subset in data else data), split
