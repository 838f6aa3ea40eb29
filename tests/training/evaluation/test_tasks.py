from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from lathe.training.datasets.layouts import LAYOUTS
from lathe.training.datasets.mteb_tasks import build_task
from lathe.training.datasets.records import Search, Tables
from lathe.training.errors import DataSetError, EvaluationError
from lathe.training.evaluation.encoders import Member, text_key, write_vectors
from lathe.training.evaluation.methods import CONTROL_METHOD
from lathe.training.evaluation.model import Collector, list_texts
from lathe.training.evaluation.suites import open_suite
from lathe.training.evaluation.tasks import limit_rows
from lathe.training.evaluation.worker import collect_texts, load_task, measure, score_methods

MEMBER = Member("fake", "f" * 32, "f" * 32, 2, {}, None, "fake")
TASKS = list(LAYOUTS)
LIMITED = ["retrieval", "reranking", "classification", "clustering", "pair_classification", "sts"]
"""Tasks of different kinds of data; those of the other tasks are limited like those of sts."""
MTEB_COPIES_TENSORS = pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")


class Compass(Collector):
    """Encoder that maps the last number of a text to a direction in a quarter of the plane."""

    def encode(self, inputs, **_):
        return directions(list_texts(inputs))


def directions(texts):
    """Return unit vectors whose angle is the last number of each text."""
    angles = np.array([float(text.split()[-1]) for text in texts]) * np.pi / 80
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def split_of(task):
    """Return the test split of a task."""
    return task.dataset["default"]["test"] if "default" in task.dataset else task.dataset["test"]


def rows_of(task):
    """Return the rows that are evaluated, or the queries and documents, as text."""
    data = split_of(task)
    names = ("queries", "corpus") if isinstance(data, dict) else ()
    return {str(row) for part in ([data[name] for name in names] or [data]) for row in part}


@pytest.fixture
def entry_of(data_set_of):
    """Return a function that returns a tiny data set as a suite's entry by its task."""

    def build(task, limit=None):
        (entry,) = open_suite(str(data_set_of(task))).entries
        assert entry.task == task
        return replace(entry, limit=limit)

    return build


@pytest.fixture
def limited(entry_of):
    """Return a function that builds a task limited to a number of rows."""

    def build(task, limit):
        load_task.cache_clear()
        return load_task(entry_of(task, limit))[0]

    return build


def searches(seed, queries=40, documents=120, ranked=False):
    """Build a search with one to four relevant documents per query, and some irrelevant and candidate ones."""
    random = np.random.default_rng(seed)
    relevant, candidates = {}, {}
    for query in range(queries):
        found = [f"d{key}" for key in random.choice(documents, 8, replace=False)]
        count = random.integers(1, 5)
        relevant[f"q{query}"] = {key: int(place < count) for place, key in enumerate(found[:6])}
        candidates[f"q{query}"] = found
    corpus = {f"d{key}": ("", f"document {key}") for key in range(documents)}
    texts = {f"q{query}": f"query {query}" for query in range(queries)}
    return Search(corpus, texts, relevant, candidates if ranked else None)


@pytest.mark.parametrize("task", LIMITED)
def test_equal_limits_take_equal_rows_and_a_larger_limit_adds_rows_to_a_smaller(limited, task):
    found = [rows_of(limited(task, limit)) for limit in (3, 6, 10)]
    assert found == [rows_of(limited(task, limit)) for limit in (3, 6, 10)]
    assert found[0] < found[1] < found[2] <= rows_of(limited(task, None))
    assert rows_of(limited(task, 1000)) == rows_of(limited(task, None))
    data = split_of(limited(task, 4))
    assert len(data["queries"] if isinstance(data, dict) else data) == 4


def test_a_limit_spreads_training_rows_evenly_over_the_labels():
    labels = [0] * 90 + [1] * 6 + [2] * 4
    splits = {name: {"text": [f"text {row}" for row in range(100)], "label": labels} for name in ("train", "test")}
    kept = {}
    for limit in (1, 2, 3, 9, 12, 30, 99, 100):
        task = build_task(LAYOUTS["classification"], "even", "en", Tables(splits))
        limit_rows(task, limit)
        kept[limit] = dict(zip(task.dataset["train"]["text"], task.dataset["train"]["label"], strict=True))
        counts = Counter(kept[limit].values())
        assert sum(counts.values()) == len(task.dataset["test"]) == limit
        full = {0: 90, 1: 6, 2: 4}
        assert all(counts[label] >= min(full[label], max(counts.values()) - 1) for label in full)
    sets = [set(texts) for texts in kept.values()]
    assert all(smaller < larger for smaller, larger in zip(sets, sets[1:], strict=False))


def test_a_limited_classification_of_more_labels_is_not_taken_for_a_binary_one():
    labels = [0] * 60 + [3] * 60 + [1, 2]
    splits = {name: {"text": [f"text {row}" for row in range(122)], "label": labels} for name in ("train", "test")}
    kept = {}
    for limit in (3, 4, 20, 60, 121):
        task = build_task(LAYOUTS["classification"], "rare", "en", Tables(splits))
        limit_rows(task, limit)
        kept[limit] = set(split_of(task)["text"])
        assert len(kept[limit]) == limit
        assert len(set(split_of(task)["label"])) > 2
    sets = list(kept.values())
    assert all(smaller < larger for smaller, larger in zip(sets, sets[1:], strict=False))


@pytest.mark.parametrize("limit", [4, 60, 119])
def test_a_limited_retrieval_keeps_all_relevant_documents_of_its_queries(limit):
    """Judgements of documents that are left out go with them."""
    whole = searches(0)
    task = build_task(LAYOUTS["retrieval"], "search", "en", whole)
    limit_rows(task, limit)
    data = split_of(task)
    corpus, queries = set(data["corpus"]["id"]), list(data["queries"]["id"])
    assert len(corpus) == limit
    assert set(data["relevant_docs"]) == set(queries)
    assert 0 < len(queries) <= limit
    for query, judged in data["relevant_docs"].items():
        assert {key for key, grade in whole.relevant[query].items() if grade} <= set(judged)
        assert judged == {key: grade for key, grade in whole.relevant[query].items() if key in corpus}


def test_a_limit_below_the_relevant_documents_of_every_query_is_refused():
    relevant = {"q0": dict.fromkeys(("d0", "d1", "d2"), 1)}
    corpus = {f"d{key}": ("", f"document {key}") for key in range(9)}
    task = build_task(LAYOUTS["retrieval"], "search", "en", Search(corpus, {"q0": "query"}, relevant))
    with pytest.raises(DataSetError, match="no query has all its relevant documents within a limit of 2"):
        limit_rows(task, 2)
    limit_rows(task, 3)
    assert split_of(task)["corpus"]["id"][:] == ["d0", "d1", "d2"]


@MTEB_COPIES_TENSORS
@pytest.mark.parametrize("task", TASKS)
def test_score_methods_needs_only_the_vectors_of_collected_texts_and_gives_perfect_ones_a_score_of_1(
    entry_of, tmp_path, task
):
    entry = entry_of(task, 6)
    collected = collect_texts(entry, {"query": "Q: "})
    assert (collected.error, collected.warnings) == (None, ())
    assert (collected.type, collected.main_score) == (LAYOUTS[task].mteb_type, LAYOUTS[task].main_score)
    assert {prompt for prompt, _ in collected.asked} <= {None, "query"}
    assert ("query" in {prompt for prompt, _ in collected.asked}) == (task in ("retrieval", "reranking", "pairs"))
    keys = [text_key(text, "Q: " if prompt else None) for prompt, text in collected.asked]
    folder = tmp_path / "vectors"
    write_vectors(folder, [(keys, directions([text for _, text in collected.asked]))])
    member = replace(MEMBER, prompts={"query": "Q: "})
    (score,) = score_methods(entry, member, folder, [CONTROL_METHOD])
    assert score.error is None
    assert score.score == score.metrics[LAYOUTS[task].main_score] == pytest.approx(1)


def test_score_methods_returns_an_error_if_the_vector_of_a_text_is_not_stored(entry_of, tmp_path):
    entry = entry_of("sts")
    texts = [text for _, text in collect_texts(entry, {}).asked]
    rest = [text_key(text) for text in texts[1:]], directions(texts[1:])
    write_vectors(tmp_path, [rest])
    (missing,) = score_methods(entry, MEMBER, tmp_path, [CONTROL_METHOD])
    assert missing.score is None
    assert missing.error.startswith("KeyError")
    write_vectors(tmp_path, [([text_key(texts[0])], directions(texts[:1])), rest])
    (whole,) = score_methods(entry, MEMBER, tmp_path, [CONTROL_METHOD])
    assert (whole.error, whole.score) == (None, pytest.approx(1))


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_measure_refuses_equal_vectors_which_have_no_correlation(limited):
    class Stuck(Compass):
        def encode(self, inputs, **_):
            return directions(["1"] * len(list_texts(inputs)))

    with pytest.raises(EvaluationError, match="the cosine_spearman of .* is NaN"):
        measure(Stuck(), limited("sts", None))
