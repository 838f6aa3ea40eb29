import numpy as np
import pytest
import torch

from lathe.service.index.embedded.exact import empty_results, merge_results, rescore, search_exactly
from lathe.service.index.embedded.vector_formats import score_floats

METRICS = ["cosine", "ip", "l2"]
WIDTH = 16


def by(metric):
    """Return the scorer of float rows in a metric."""
    return lambda queries, rows: score_floats(queries, torch.from_numpy(rows), metric)


def normal(rows, seed, metric="ip"):
    """Draw normal rows `(rows, WIDTH)`, of norm 1 for cosine."""
    drawn = np.random.default_rng(seed).normal(size=(rows, WIDTH)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True) if metric == "cosine" else drawn


def all_scores(queries, vectors, metric):
    """Compute every score `(queries, vectors)` in float64. Higher is better."""
    queries, vectors = queries.astype(np.float64), vectors.astype(np.float64)
    if metric == "l2":
        return -np.linalg.norm(queries[:, None] - vectors[None], axis=2)
    return queries @ vectors.T


def assert_best(found, queries, vectors, among, k, metric):
    """Assert that the found rows are distinct rows of `among` with the best k scores."""
    rows, scores = found
    there = min(k, len(among))
    assert rows.shape == scores.shape == (len(queries), k)
    assert rows.dtype == np.int64 and scores.dtype == np.float32
    assert (rows[:, there:] == -1).all() and np.isneginf(scores[:, there:]).all()
    assert all(len(set(one) & set(among.tolist())) == there for one in rows[:, :there].tolist())
    right = all_scores(queries, vectors, metric)
    best = -np.sort(-right[:, among], axis=1)[:, :there]
    np.testing.assert_allclose(np.take_along_axis(right, rows[:, :there], 1), best, atol=1e-5)
    np.testing.assert_allclose(scores[:, :there], best, atol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("entries", "k"), [(2**23, 10), (700, 1), (1, 500), (700, 600)])
def test_search_exactly_equals_brute_force_for_any_rows_mask_k_and_block_size(metric, entries, k):
    vectors, queries = normal(500, 0, metric), normal(7, 1, metric)
    draw = np.random.default_rng(2)
    allowed, chosen = draw.random(500) < 0.3, np.flatnonzero(draw.random(500) < 0.5)
    everything = np.arange(500)
    cases = [
        (slice(0, 500), None, everything),
        (slice(120, 430), None, everything[120:430]),
        (slice(120, 430), allowed, everything[120:430][allowed[120:430]]),
        (chosen, None, chosen),
        (chosen, allowed, chosen[allowed[chosen]]),
    ]
    for rows, marks, among in cases:
        found = search_exactly(queries, vectors, rows, marks, k, by(metric), entries)
        assert_best(found, queries, vectors, among, k, metric)


def test_search_exactly_by_l2_is_exact_however_far_the_vectors_are_from_the_origin_or_how_near_each_other():
    for away in (0, 10, 100):
        vectors = (away + 0.01 * normal(300, 0)).astype(np.float32)
        queries = (away + 0.01 * normal(40, 1)).astype(np.float32)
        found = search_exactly(queries, vectors, slice(0, 300), None, 5, by("l2"))
        assert_best(found, queries, vectors, np.arange(300), 5, "l2")
    vectors = normal(200, 0) * 30
    rows, scores = search_exactly(vectors, vectors, slice(0, 200), None, 1, by("l2"))
    np.testing.assert_array_equal(rows[:, 0], np.arange(200))
    np.testing.assert_allclose(scores[:, 0], 0, atol=1e-3)


def test_merge_results_of_parts_equals_the_search_of_the_whole():
    vectors, queries = normal(300, 0), normal(6, 1)
    parts = [slice(0, 4), slice(4, 150), slice(150, 300)]
    found = empty_results(6, 0)
    for part in parts:
        found = merge_results(found, search_exactly(queries, vectors, part, None, 12, by("ip")), 12)
    whole = search_exactly(queries, vectors, slice(0, 300), None, 12, by("ip"))
    np.testing.assert_array_equal(found[0], whole[0])
    np.testing.assert_allclose(found[1], whole[1], rtol=1e-6)


def test_merge_results_keeps_the_first_of_equal_scores_and_puts_padding_last():
    one = np.array([[5, 6, -1]]), np.array([[0.9, 0.5, -np.inf]], np.float32)
    other = np.array([[7, 8, -1]]), np.array([[0.9, 0.7, -np.inf]], np.float32)
    rows, scores = merge_results(one, other, 5)
    assert rows.tolist() == [[5, 7, 8, 6, -1]]
    assert scores.tolist() == [[np.float32(0.9), np.float32(0.9), np.float32(0.7), 0.5, -np.inf]]
    assert merge_results(one, empty_results(1, 0), 2)[0].tolist() == [[5, 6]]
    assert merge_results(empty_results(1, 2), one, 3)[0].tolist() == [[5, 6, -1]]


@pytest.mark.parametrize("block_entries", [2**23, 7])
def test_of_equal_scores_the_first_rows_are_found_whatever_k(block_entries):
    # Whole numbers have exact products, whichever order a processor adds them in.
    vectors = np.repeat(np.rint(4 * normal(3, 0, "ip")).astype(np.float32), [5, 20, 15], axis=0)
    query = vectors[5:6]
    whole = search_exactly(query, vectors, slice(None), None, 40, by("ip"), block_entries)
    assert whole[0][0, :20].tolist() == list(range(5, 25))
    for k in (1, 3, 20, 21, 39):
        found = search_exactly(query, vectors, slice(None), None, k, by("ip"), block_entries)
        assert found[0][0].tolist() == whole[0][0, :k].tolist()


@pytest.mark.parametrize("metric", METRICS)
def test_rescore_ranks_candidates_by_their_original_vectors(metric):
    originals, queries = normal(200, 0, metric).astype(np.float16), normal(9, 1, metric)
    draw = np.random.default_rng(2)
    candidates = np.stack([draw.permutation(200)[:40] for _ in range(9)])
    candidates[draw.random(candidates.shape) < 0.2] = -1
    candidates[0] = -1
    candidates[1, 3:] = -1
    rows, scores = rescore(queries, originals, candidates, 5, metric)
    if metric == "cosine":
        originals = originals / np.linalg.norm(originals.astype(np.float32), axis=1, keepdims=True)
    assert rows.shape == scores.shape == (9, 5)
    for number in range(9):
        among = candidates[number][candidates[number] >= 0]
        one = slice(number, number + 1)
        assert_best((rows[one], scores[one]), queries[one], originals, among, 5, metric)


def test_rescore_returns_fewer_columns_if_there_are_fewer_candidates_than_k():
    originals, queries = normal(20, 0).astype(np.float16), normal(2, 1)
    assert rescore(queries, originals, np.array([[3, 4], [9, -1]]), 5, "ip")[0].shape == (2, 2)
    assert rescore(queries, originals, np.empty((2, 0), np.int64), 5, "ip")[0].shape == (2, 0)
