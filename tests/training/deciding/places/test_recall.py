"""Recall among sampled rows is counted exactly, and what it predicts for more rows is found among them."""

import numpy as np
import pytest

from lathe.training.deciding.places.forms import FormSearch, StoredForm
from lathe.training.deciding.places.recall import CANDIDATES, NEAREST, PART, K, count_found, extrapolate, find_nearest


@pytest.fixture(scope="module")
def vectors():
    """Draw 20,000 rows and 200 queries of 24 dimensions, in clusters."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(200, 24))
    drawn = centres[rng.integers(200, size=20_200)] + 0.7 * rng.normal(size=(20_200, 24))
    return drawn[:20_000].astype(np.float32), drawn[20_000:].astype(np.float32)


def test_found_rows_are_counted_for_each_number_of_nearest_rows_and_of_candidates():
    rng = np.random.default_rng(0)
    exact, scores = rng.normal(size=(2, 5, 300)).astype(np.float32)
    scores += exact
    counts = count_found(scores, find_nearest(exact))
    for row, multiple in enumerate(CANDIDATES):
        for column, k in enumerate(NEAREST):
            for query in range(5):
                wanted = set(np.argsort(-exact[query])[:k])
                found = set(np.argsort(-scores[query])[: multiple * k])
                assert counts[row, column, query] == len(wanted & found)


@pytest.mark.parametrize("form", [StoredForm("float16", 12, "pca:12,center=none"), StoredForm("bit", 24)])
def test_what_a_tenth_of_the_rows_predicts_is_found_among_all(vectors, form):
    rows, queries = vectors
    few = FormSearch(rows[:2000], queries, "cosine")
    exact, scores = few.score(StoredForm("float32", 24)), few.score(form)
    part = 2000 // PART
    counts = count_found(scores, find_nearest(exact))
    in_part = count_found(scores[:, :part], find_nearest(exact[:, :part]))
    every = FormSearch(rows, queries, "cosine")
    true = count_found(every.score(form), find_nearest(every.score(StoredForm("float32", 24))))
    for multiple in range(len(CANDIDATES)):
        expected = extrapolate(counts[multiple], in_part[multiple], 2000, 20_000)
        share = true[multiple, 0].mean() / K
        assert abs(expected.value - share) < 0.08
        assert expected.low <= expected.value <= expected.high
        assert expected.rows == 20_000


def test_a_search_that_loses_nothing_in_the_sample_is_not_said_to_lose_nothing():
    found = np.array([[k] * 100 for k in NEAREST])
    expected = extrapolate(found, found, 4000, 1_000_000)
    assert expected.value > 0.999
    assert expected.low == pytest.approx(1 - 3 / 100)


def test_among_fewer_rows_than_were_sampled_recall_is_that_of_the_sample():
    found = np.array([[int(0.8 * k)] * 100 for k in NEAREST])
    assert extrapolate(found, found, 4000, 10) == extrapolate(found, found, 4000, 4000)
    assert extrapolate(found, found, 4000, 10).value == pytest.approx(0.8, abs=0.01)


def test_beyond_ten_times_the_sample_the_interval_is_wide_and_before_it_is_not():
    rng = np.random.default_rng(0)
    found = np.array([rng.binomial(k, 0.97, size=300) for k in NEAREST])
    widths = []
    for rows in (40_000, 400_000, 4_000_000):
        expected = extrapolate(found, found, 4000, rows)
        assert expected.low < expected.value <= expected.high
        widths.append(expected.high - expected.low)
    assert widths[0] < 0.05 and widths[1] > 2 * widths[0] and widths[2] > 2 * widths[1]
