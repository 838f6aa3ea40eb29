"""Data sets as mteb tasks, so that mteb computes all metrics.

Only worker processes import this module: importing mteb takes seconds, and it prints progress bars.
"""

from typing import Any

import mteb.abstasks
import numpy as np
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTask, AbsTaskClassification
from mteb.abstasks.task_metadata import TaskMetadata

from lathe.training.datasets.layout import Layout
from lathe.training.datasets.records import Search, Tables, normalize_text

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
"""mteb's code of a language, by its two-letter code."""
LETTERS = {code.partition("-")[0]: letters for letters, code in LANGUAGES.items()}
"""Two-letter code of a language, by mteb's three-letter code."""
UNKNOWN_LANGUAGE = "und-Latn"
"""Code of any other language, because mteb does not compute scores without a language."""


class _Classification(AbsTaskClassification):
    """mteb's classification task with all test labels read into memory at once.

    mteb would read them row by row, which makes the metrics ten times slower.
    """

    def _calculate_scores(self, y_test: Any, y_pred: Any) -> Any:
        return super()._calculate_scores(np.asarray(y_test[:]), y_pred)


def build_task(layout: Layout, name: str, language: str, data: Tables | Search) -> AbsTask:
    """Build an mteb task from the content of a test in memory, ready to be evaluated.

    Args:
        layout: layout of the data set.
        name: name of the task.
        language: two-letter code of a language, or two codes joined by "-".
        data: content of the test.
    """
    source = {"path": name, "revision": "local"}
    task = _create_task_class(layout, name, language, layout.build_mteb_attributes(data), source, "test")()
    if isinstance(data, Search):
        task.dataset = _convert_search(data)
    else:
        task.dataset = DatasetDict({split: Dataset.from_dict(columns) for split, columns in data.splits.items()})
    task.data_loaded = True
    return task


def build_hub_task(layout: Layout, name: str, language: str, source: dict[str, str], split: str) -> AbsTask:
    """Build an mteb task whose data mteb loads later from the hub, by `path` and `revision` in `source`."""
    return _create_task_class(layout, name, language, {}, source, split)()


def _create_task_class(
    layout: Layout, name: str, language: str, attributes: dict[str, Any], source: dict[str, str], split: str
) -> type[AbsTask]:
    """Create the mteb task class of a layout, with its metadata and the given class attributes."""
    base = getattr(mteb.abstasks, layout.mteb_class)
    tags = [LANGUAGES[part] for part in language.split("-") if part in LANGUAGES]
    metadata = TaskMetadata(
        dataset=source,  # type: ignore[arg-type]
        name=name,
        description=name,
        type=layout.mteb_type,  # type: ignore[arg-type]
        category="t2c" if layout.mteb_type in ("Classification", "Clustering") else "t2t",
        eval_splits=[split],
        eval_langs=tags or [UNKNOWN_LANGUAGE],
        main_score=layout.main_score,
    )
    bases = (_Classification if base is AbsTaskClassification else base,)

    return type("LocalTask", bases, {"metadata": metadata} | attributes)


def _convert_search(data: Search) -> dict[str, Any]:
    """Convert a search to the nested dict of data sets that mteb's retrieval tasks hold.

    A document that equals the text of a query gets the id of that query, and no other document has the id of a query.
    mteb's `ignore_identical_ids` then removes exactly the query's own text from its results.
    """
    by_text = {normalize_text(text): query for query, text in reversed(data.queries.items())}
    ids: dict[str, str] = {}
    for key, (title, text) in data.corpus.items():
        own_query = by_text.pop(normalize_text(f"{title} {text}"), None)
        new = key if own_query is None else own_query
        while own_query is None and (new in data.queries or (new != key and new in data.corpus)):
            new = f"document {new}"
        ids[key] = new

    corpus = [{"id": ids[key], "title": title, "text": text} for key, (title, text) in data.corpus.items()]
    queries = {"id": list(data.queries), "text": list(data.queries.values())}
    relevant = {
        query: {ids[document]: grade for document, grade in judged.items()} for query, judged in data.relevant.items()
    }
    ranked = data.ranked and {query: [ids[key] for key in keys] for query, keys in data.ranked.items()}
    split = {
        "corpus": Dataset.from_list(corpus),
        "queries": Dataset.from_dict(queries),
        "relevant_docs": relevant,
        "top_ranked": ranked,
    }

    return {"default": {"test": split}}
