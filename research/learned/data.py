"""Search tasks with queries to train on and others to measure on, and their vectors."""

import argparse
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.codes.data import EncodedData, Vectors, make_data_parser
from lathe.training.datasets.folder import FolderDataSet

TUNING = ("finance/fiqa_qa", "code/spider_sql", "code/mbpp", "general/cranfield")
"""Tasks by whose figures parameters and defaults were chosen."""

PROOF = (
    "code/cosqa",
    "code/nl2bash",
    "finance/tatqa",
    "general/quora_pairs",
    "general/trec_qa",
    "general/npl",
    "general/dbpedia_mini",
)
"""Tasks that are set aside: nothing was chosen by their figures."""

Gains = list[dict[int, int]]
"""Grade of each judged document by its row, for each query."""


@dataclass(frozen=True)
class Task:
    """Texts of a search task.

    Attributes:
        name: path below the data folder.
        documents: texts of the corpus.
        train: texts of the queries to train on; none of them is a test query.
        train_gains: their judged documents.
        test: texts of the queries to measure on.
        test_gains: their judged documents.
    """

    name: str
    documents: list[str]
    train: list[str]
    train_gains: Gains
    test: list[str]
    test_gains: Gains


@dataclass(frozen=True)
class EncodedTask:
    """A task and its unit vectors by one encoder.

    Attributes:
        task: the texts.
        documents: `(m, d)`.
        train: `(n, d)`.
        test: `(t, d)`.
    """

    task: Task
    documents: Vectors
    train: Vectors
    test: Vectors

    @property
    def pairs(self) -> NDArray[np.int64]:
        """Rows of queries and of their relevant documents, `(p, 2)`, of the queries to train on."""
        found = [(q, d) for q, gains in enumerate(self.task.train_gains) for d, grade in gains.items() if grade > 0]
        return np.array(found, np.int64).reshape(-1, 2)


def task_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options of benchmarks that measure task by task and keep each result."""
    options = make_data_parser(description)
    options.add_argument("--task", action="append", default=[], metavar="NAME", help="only these")
    options.add_argument("--measured", action="store_true", help="report what the work folder has, and measure nothing")
    return options


def measure_once(path: Path, measure: Callable[[], dict[str, Any]], only_measured: bool) -> dict[str, Any] | None:
    """Return the figures in a file.

    If there is none, measure and write them, or return None if `only_measured`.
    """
    if not path.exists():
        if only_measured:
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(measure()))
    return dict(orjson.loads(path.read_bytes()))


def encode_task(data: EncodedData, name: str, train: bool = True) -> EncodedTask:
    """Read a task and encode what the work folder lacks.

    Without `train`, leave out the queries to train on.
    """
    task = read_task(data.data, name)
    if not train:
        task = replace(task, train=[], train_gains=[])
    sides = (task.documents, data.encoder.document), (task.train, data.encoder.query), (task.test, data.encoder.query)
    width = 0
    found = []
    for texts, prompt in sides:
        vectors = data.encoded(name, texts, prompt) if texts else np.zeros((0, width), np.float32)
        width = vectors.shape[1]
        found.append(vectors)
    return EncodedTask(task, *found)


def read_task(folder: Path, name: str) -> Task:
    """Read a task from the folder of the data.

    Question pairs become searches for the duplicates of a question.
    """
    return _read_question_pairs(folder, name) if name.endswith("quora_pairs") else _read_retrieval(folder, name)


def _read_retrieval(folder: Path, name: str) -> Task:
    """Read a retrieval task.

    Queries that a development split judges are trained on too.
    """
    data = FolderDataSet(name, "retrieval", folder / name)
    documents: dict[str, str] = {}
    for row in data.read_rows("corpus"):
        documents[str(row["_id"])] = f"{row.get('title') or ''} {row.get('text') or ''}".strip()
    places = {key: place for place, key in enumerate(documents)}
    texts = {str(row["_id"]): str(row["text"]) for row in data.read_rows("queries")}
    judged: dict[str, dict[str, dict[int, int]]] = {}
    for split in data.list_splits():
        by_query: dict[str, dict[int, int]] = defaultdict(dict)
        for _, query, document, grade in data.read_judgements(split):
            if document in places and texts.get(query, "").strip():
                by_query[query][places[document]] = grade
        judged[split] = {query: gains for query, gains in by_query.items() if max(gains.values()) > 0}
    test = judged.pop("test")
    tested = {_normalize(texts[query]) for query in test}
    train = {
        query: gains
        for gains_of in judged.values()
        for query, gains in gains_of.items()
        if _normalize(texts[query]) not in tested
    }
    return Task(
        name,
        list(documents.values()),
        [texts[query] for query in train],
        list(train.values()),
        [texts[query] for query in test],
        list(test.values()),
    )


def _read_question_pairs(folder: Path, name: str) -> Task:
    """Read pairs of questions: the first questions of duplicates search all second questions."""
    data = FolderDataSet(name, "pair_classification", folder / name)
    rows = {split: list(data.read_rows(split)) for split in ("train", "test")}
    documents = list(dict.fromkeys(str(row["sentence2"]) for split in rows for row in rows[split]))
    places = {text: place for place, text in enumerate(documents)}
    known = {_normalize(text) for text in documents}
    judged: dict[str, dict[str, dict[int, int]]] = {}
    for split in rows:
        by_query: dict[str, dict[int, int]] = defaultdict(dict)
        for row in rows[split]:
            query = str(row["sentence1"])
            # A question that is a document itself would find itself first.
            if int(row["label"]) == 1 and _normalize(query) not in known:
                by_query[query][places[str(row["sentence2"])]] = 1
        judged[split] = dict(by_query)
    tested = {_normalize(query) for query in judged["test"]}
    train = {query: gains for query, gains in judged["train"].items() if _normalize(query) not in tested}
    return Task(name, documents, list(train), list(train.values()), list(judged["test"]), list(judged["test"].values()))


def _normalize(text: str) -> str:
    """Return a text in lower case with single spaces, in which equal queries are the same."""
    return " ".join(text.lower().split())
