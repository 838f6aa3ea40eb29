"""The benchmark of query adapters: its tasks, and its measures."""

import json

import numpy as np
import pytest

from research.learned.data import EncodedTask, Task, read_task
from research.learned.measure import find_nearest, score


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows))


def test_a_test_query_is_never_among_those_to_learn_from(tmp_path):
    folder = tmp_path / "general" / "some"
    write(folder / "corpus.jsonl", [{"_id": f"d{n}", "text": f"document {n}"} for n in range(3)])
    queries = [("a", "One"), ("b", "two"), ("c", " one "), ("d", "three")]
    write(folder / "queries.jsonl", [{"_id": key, "text": text} for key, text in queries])
    for split, judged in {"train": "b\td0\t1\nc\td1\t1\nd\td2\t0", "test": "a\td1\t2"}.items():
        path = folder / "qrels" / f"{split}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"query-id\tcorpus-id\tscore\n{judged}\n")
    task = read_task(tmp_path, "general/some")
    assert (task.train, task.train_gains) == (["two"], [{0: 1}])
    assert (task.test, task.test_gains) == (["One"], [{1: 2}])


def test_question_pairs_become_searches_without_the_questions_that_are_documents(tmp_path):
    folder = tmp_path / "quora_pairs"
    rows = [("a", "b", 1), ("a", "c", 0), ("b", "d", 1)]
    write(folder / "train.jsonl", [{"sentence1": x, "sentence2": y, "label": z} for x, y, z in [*rows, ("e", "f", 1)]])
    write(folder / "test.jsonl", [{"sentence1": "A", "sentence2": "g", "label": 1}])
    task = read_task(tmp_path, "quora_pairs")
    assert task.documents == ["b", "c", "d", "f", "g"]
    assert (task.train, task.train_gains) == (["e"], [{3: 1}])
    assert (task.test, task.test_gains) == (["A"], [{4: 1}])


@pytest.fixture
def task():
    rng = np.random.default_rng(0)
    documents = rng.normal(size=(150, 130)).astype(np.float32)
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    gains = [{n: 1} for n in range(150)]
    texts = [str(n) for n in range(150)]
    noisy = (documents + 0.05 * rng.normal(size=documents.shape)).astype(np.float32)
    made = Task("some", texts, texts[:60], gains[:60], texts[60:], gains[60:])
    return EncodedTask(made, documents, noisy[:60], noisy[60:])


def test_scores_are_those_of_the_documents_found(task):
    ids = find_nearest(task.test, task.documents)
    np.testing.assert_array_equal(ids, np.argsort(-(task.test @ task.documents.T), axis=1)[:, :10])
    ndcg, recall = score(task.test, task.documents, task.task.test_gains)
    np.testing.assert_allclose(recall, (ids == np.arange(60, 150)[:, None]).any(axis=1))
    assert ((ndcg > 0) == (recall > 0)).all()
