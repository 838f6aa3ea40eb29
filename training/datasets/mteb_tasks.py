"""Data sets as mteb tasks, so that mteb computes all metrics.

Only worker processes import this module: importing mteb takes seconds, and it prints progress bars.
"""

from typing import Any

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

from training.datasets.layouts import Columns, Search, Tables

RANKS = (1, 3, 5, 10, 20, 100)
"""Cut-offs k of retrieval metrics; mteb's own go to 1,000, more than local corpora need."""
RERANKED = (*RANKS, 1000)
"""Cut-offs for reranking, whose main score in mteb is at 1,000."""


class Classification(AbsTaskClassification):
    """mteb's classification task with labels in memory; otherwise metrics read them row by row, ten times slower."""

    def _calculate_scores(self, y_test: Any, y_pred: Any) -> Any:
        """Compute mteb's metrics from labels as an array."""
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
"""mteb's code of a language, by two letters."""
LETTERS = {code.partition("-")[0]: letters for letters, code in LANGUAGES.items()}
"""Two-letter code of a language, by mteb's three letters."""
UNSAID = "und-Latn"
"""Code of any other language; without a language mteb computes no score."""

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
"""mteb's task class, task type and main score, by the task of a data set."""


def local_task(name: str, task: str, language: str, data: Tables | Search) -> AbsTask:
    """Build an mteb task from data in memory, ready to evaluate."""
    found = task_class(name, task, language, local_attributes(task, data), {"path": name, "revision": "local"})()
    found.dataset = search_data(data) if isinstance(data, Search) else table_data(data)
    found.data_loaded = True
    return found


def local_attributes(task: str, data: Tables | Search) -> dict[str, Any]:
    """Return the class attributes that tell mteb about columns, score ranges, cut-offs and sampling of the data."""
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
    """Create a subclass of mteb's task class, with metadata, for one data set.

    Args:
        name: name of the task.
        task: layout of the data, key of `TYPES`.
        language: two-letter language, or two joined by "-".
        attributes: further class attributes.
        source: `path` and `revision` for the metadata.
    """
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
    """Convert splits of columns to a `DatasetDict`."""
    return DatasetDict({split: Dataset.from_dict(found) for split, found in data.splits.items()})


def search_data(data: Search) -> dict[str, Any]:
    """Convert a search to the nested dict of corpus, queries, judgements and candidates that mteb expects."""
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


def hub_search(name: str, language: str, source: dict[str, str], split: str) -> AbsTask:
    """Build a retrieval task of which mteb loads corpus, queries and judgements from the hub itself."""
    found = task_class(name, "retrieval", language, {}, source)
    found.metadata = found.metadata.model_copy(update={"eval_splits": [split]})
    return found()
