import json
from dataclasses import replace

import numpy as np
import pytest

from lathe.service.errors import BadValueError, TooLargeError
from lathe.service.index.embedded.generation import Generation
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.query import Query, parse_filter
from lathe.service.index.reducer import Reducer
from lathe.service.index.spec import IndexSpec

hnswlib = pytest.importorskip("hnswlib")

METRICS = ["cosine", "ip", "l2"]
WIDTH = 16
GRAPH_BEYOND = 20
"""Rows; where more may be found the graph answers."""
SPEC = IndexSpec(
    encoder=None, encoder_fingerprint=None, width=16, raw_space_id="r", chain="none", dimensions=16, space_id="r"
)


class Made:
    """A generation with its record, and the same items in a dictionary for an exact search with NumPy."""

    def __init__(self, folder, metric="cosine", exact_rows=None):
        self.spec = replace(SPEC, metric=metric)
        self.record = IndexRecord.create(folder / "record.db", self.spec, None)
        reducer = Reducer(self.spec, None)
        self.generation = Generation(folder / "graph-1", self.spec, self.record, reducer, 1, exact_rows)
        self.items = {}

    def put(self, ids, vectors, metadata=None):
        metadata = metadata or [None] * len(ids)
        payloads = [json.dumps(given).encode() if given else None for given in metadata]
        written = self.record.upsert(ids, vectors, metadata, payloads, self.spec)
        self.generation.append(written.labels, vectors)
        self.generation.rows.mark_dead(written.dead)
        for item, label, vector, given in zip(ids, written.labels, vectors, metadata, strict=True):
            self.items[item] = (label, vector, given or {})

    def delete(self, ids):
        self.generation.rows.mark_dead(self.record.delete(self.record.find_labels(ids)).dead)
        for item in ids:
            self.items.pop(item, None)

    def link(self, most=10**9):
        return self.generation.extend_graph(most, 1)

    def truth(self, queries, k, passes=lambda metadata: True):
        """Labels and scores of the best, and the score of every label."""
        there = [(label, vector) for label, vector, metadata in self.items.values() if passes(metadata)]
        labels = np.array([label for label, _ in there], np.int64)
        vectors = np.array([vector for _, vector in there], np.float64).reshape(len(there), WIDTH)
        scores = np.stack([score(query, vectors, self.spec.metric) for query in queries.astype(np.float64)])
        order = np.argsort(scores if self.spec.metric == "l2" else -scores, axis=1)[:, :k]
        return labels[order], np.take_along_axis(scores, order, 1)


def score(query, vectors, metric):
    """Compute the scores of a query and vectors in a metric, which are distances for l2."""
    if metric == "l2":
        return np.linalg.norm(vectors - query, axis=1)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query) if metric == "cosine" else 1.0
    return vectors @ query / lengths


def recall(found, expected):
    """Return the mean share of expected labels that were found."""
    return np.mean([len(set(one) & set(other)) / len(other) for one, other in zip(found, expected, strict=True)])


def normal(rows, seed=0, scale=1.0):
    """Draw normal rows `(rows, WIDTH)`."""
    return (scale * np.random.default_rng(seed).normal(size=(rows, WIDTH))).astype(np.float32)


def names(rows, first=0):
    """Return this many ids, counting from `first`."""
    return [f"id {number}" for number in range(first, first + rows)]


@pytest.fixture
def make(tmp_path):
    """Return a function that builds an empty generation with its record."""
    made = []

    def build(metric="cosine", exact_rows=None):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Made(folder, metric, exact_rows))
        return made[-1]

    yield build
    for one in made:
        one.record.close()


@pytest.mark.parametrize(("metric", "exact"), [("cosine", True), *((metric, False) for metric in METRICS)])
def test_search_returns_the_k_best_rows_with_their_scores_best_first(make, metric, exact):
    made, queries = make(metric, None if exact else GRAPH_BEYOND), normal(300, 1)
    made.put(names(1500), normal(1500, scale=2.0))
    assert made.link() == 0 and made.generation.covered == 1500
    labels, scores, _ = made.generation.search(Query(queries, 10, ef=200))
    expected, right = made.truth(queries, 10)
    assert recall(labels, expected) >= (1.0 if exact else 0.99)
    np.testing.assert_allclose(scores, right, atol=0.02 if metric == "l2" else 1e-2)
    assert (np.diff(scores if metric == "l2" else -scores, axis=1) >= 0).all()


@pytest.mark.parametrize(("metric", "linked"), [("cosine", 0), ("ip", 5), ("l2", 500), ("ip", 999), ("cosine", 1000)])
def test_search_covers_rows_in_the_graph_and_rows_not_yet_in_it(make, metric, linked):
    made, queries = make(metric, GRAPH_BEYOND), normal(40, 1)
    made.put(names(1000), normal(1000))
    assert made.link(linked) == 1000 - linked
    assert recall(made.generation.search(Query(queries, 10, ef=300))[0], made.truth(queries, 10)[0]) >= 0.99


@pytest.mark.parametrize("linked", [0, 300, 600])
def test_search_never_finds_deleted_or_replaced_versions(make, linked):
    made, vectors = make(exact_rows=GRAPH_BEYOND), normal(600)
    made.put(names(600), vectors)
    made.link(linked)
    made.delete(names(100))
    made.put(names(100, 100), normal(100, 5))
    for k, ef, rescoring in ((10, 20, None), (10, 300, 3.0), (600, None, None)):
        labels, _, _ = made.generation.search(Query(vectors[:200], k, ef=ef, rescoring=rescoring))
        assert not set(range(1, 201)) & set(labels.ravel().tolist())
        assert (labels[:, : min(k, 500)] > 0).all() and (labels[:, 500:] == -1).all()
    assert made.generation.search(Query(vectors[200:], 1, ef=300))[0][:, 0].tolist() == list(range(201, 601))


@pytest.mark.parametrize(("metric", "linked"), [("cosine", 0), ("l2", 40), ("ip", 64)])
def test_search_with_large_k_returns_all_matching_rows_and_then_padding(make, linked, metric):
    made, queries = make(metric, exact_rows=5), normal(3, 1)
    assert (made.generation.search(Query(queries, 4))[0] == -1).all()
    made.put(names(64), normal(64), [{"odd": bool(n % 2)} for n in range(64)])
    made.link(linked)
    made.delete(names(2))
    for wanted, there in ((None, 62), ({"odd": True}, 31), ({"odd": 1}, 0), ({"odd": {"ne": 1}}, 62)):
        for rescoring in (None, 2.0):
            parsed = parse_filter(wanted) if wanted else None
            labels, scores, _ = made.generation.search(Query(queries, 100, rescoring=rescoring, item_filter=parsed))
            assert labels.shape == scores.shape == (3, 100)
            assert [len(set(found)) for found in labels[:, :there].tolist()] == [there] * 3
            assert (labels[:, there:] == -1).all() and (labels[:, :there] > 0).all()
            assert np.isinf(scores[:, there:]).all() and np.isfinite(scores[:, :there]).all()


def test_filtered_search_follows_writes_made_after_the_filters_first_use(make):
    made, queries = make(exact_rows=GRAPH_BEYOND), normal(20, 1)
    draw = np.random.default_rng(0)
    wanted = parse_filter({"group": {"in": [0, 1]}, "not": {"odd": True}})

    def passes(metadata):
        return metadata["group"] in (0, 1) and not metadata.get("odd", False)

    for step in range(6):
        chosen = [f"id {number}" for number in draw.choice(500, 120, replace=False)]
        metadata = [{"group": int(draw.integers(3))} | ({"odd": True} if draw.integers(2) else {}) for _ in chosen]
        made.put(chosen, normal(120, 10 + step), metadata)
        made.delete([f"id {number}" for number in draw.choice(500, 40, replace=False)])
        made.link(70)
        labels, scores, _ = made.generation.search(Query(queries, 10, ef=400, item_filter=wanted))
        expected, right = made.truth(queries, 10, passes)
        assert set(labels.ravel().tolist()) <= {label for label, _, m in made.items.values() if passes(m)}
        assert recall(labels, expected) >= 0.99
        np.testing.assert_allclose(scores, right, atol=1e-2)


@pytest.mark.parametrize("near", [True, False])
def test_filtered_search_has_recall_of_098_if_the_filter_correlates_with_clusters(make, near):
    made, clusters = make(exact_rows=50), 10
    centres, draw = normal(clusters, 7, scale=3.0), np.random.default_rng(8)
    cluster = draw.integers(clusters, size=2000)
    vectors = centres[cluster] + normal(2000, 9)
    made.put(names(2000), vectors, [{"cluster": int(c), "tenth": n % 10 == 0} for n, c in enumerate(cluster)])
    made.link()
    for number in range(0, clusters, 5):
        asked = [number] if near else [c for c in range(clusters) if c != number][:3]
        queries = centres[number] + normal(20, 20 + number)
        for wanted in ({"cluster": {"in": asked}}, {"cluster": {"in": asked}, "tenth": False}):

            def passes(metadata, asked=asked, some="tenth" in wanted):
                return metadata["cluster"] in asked and not (some and metadata["tenth"])

            labels, _, _ = made.generation.search(Query(queries, 10, item_filter=parse_filter(wanted)))
            assert recall(labels, made.truth(queries, 10, passes)[0]) >= 0.98


def test_rows_added_to_the_graph_after_a_view_was_taken_are_not_found_in_that_view(make):
    made, vectors = make(exact_rows=GRAPH_BEYOND), normal(400)
    made.put(names(200), vectors[:200])
    view = made.generation.rows.take_view()
    made.put(names(200, 200), vectors[200:])
    made.link()
    queries = made.generation.reducer.reduce_queries(vectors[200:])
    found, _ = made.generation.find_candidates(queries, view, None, 5, 100)
    assert found.shape == (200, 5) and found.min() >= 0 and found.max() < 200


def test_search_answers_many_queries_as_it_answers_each_alone(make):
    made, queries = make(exact_rows=GRAPH_BEYOND), normal(600, 1)
    made.put(names(300), normal(300))
    made.link()
    labels, scores, _ = made.generation.search(Query(queries, 7))
    for number in (0, 255, 256, 599):
        alone = made.generation.search(Query(queries[number][None], 7))
        np.testing.assert_array_equal(alone[0][0], labels[number])
        np.testing.assert_allclose(alone[1][0], scores[number], atol=1e-6)
    assert made.generation.search(Query(queries[:0], 7))[0].shape == (0, 7)


def test_append_refuses_vectors_that_are_not_finite_or_overflow_float16(make):
    for metric, value in (("cosine", np.inf), ("cosine", np.nan), ("ip", np.nan), ("ip", 7e4), ("l2", -7e4)):
        made, vectors = make(metric), normal(2)
        vectors[1, 3] = value
        with pytest.raises(BadValueError):
            made.generation.append(np.array([1, 2]), vectors)
        assert made.generation.rows.count == 0


def test_the_conditions_of_one_filter_share_a_work_limit(make):
    """Conditions evaluated before are cached and cost no more work."""
    made, vectors = make(), normal(100)
    made.put(names(100), vectors, [{"x": list(range(200))}] * 100)
    conditions = [{"x": {"gte": number}} for number in range(4)]  # some 220,000 steps each
    made.generation.filters.steps = 500_000
    with pytest.raises(TooLargeError, match="use fewer conditions"):
        made.generation.search(Query(vectors[:1], 3, item_filter=parse_filter({"and": conditions})))
    for condition in conditions:
        labels, _, _ = made.generation.search(Query(vectors[:1], 3, item_filter=parse_filter(condition)))
        assert labels[0, 0] == 1
    labels, _, _ = made.generation.search(Query(vectors[:1], 3, item_filter=parse_filter({"and": conditions})))
    assert labels[0, 0] == 1  # their masks are known by now


def test_a_condition_on_a_field_whose_name_takes_megabytes_is_not_kept(make):
    made, vectors = make(), normal(20)
    made.put(names(20), vectors, [{"x": 1}] * 20)
    for field in ("x", "y" * 1_000_000):
        made.generation.search(Query(vectors[:1], 3, item_filter=parse_filter({field: 1})))
    assert [condition.field for condition in made.generation.filters.cached] == ["x"]
