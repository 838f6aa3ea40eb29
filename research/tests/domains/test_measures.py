import numpy as np
import pytest
from scipy import stats
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import average_precision_score, ndcg_score, v_measure_score

from research.domains.measures import (
    average_precisions,
    ndcg,
    rank_best,
    reduce_to_span,
    v_measure,
)
from research.domains.samples import (
    SAMPLES,
    PairPool,
    ScoredPool,
    score_samples,
)
from research.paper_findings.statistics import rank_correlation

RANDOM = np.random.default_rng(0)
PLACES = RANDOM.integers(0, 30, (20, 50))


def test_average_precisions_equal_scikit_learns_with_ties():
    similarities, labels = RANDOM.integers(0, 9, (20, 50)) / 9, RANDOM.integers(0, 2, (20, 50)).astype(float)
    expected = [average_precision_score(*row) for row in zip(labels, similarities, strict=True)]
    np.testing.assert_allclose(average_precisions(similarities, labels), expected)


def test_ndcg_equals_scikit_learns_without_ties():
    for _ in range(20):
        similarities, grades = RANDOM.permutation(30).astype(float), RANDOM.integers(0, 4, 30).astype(float)
        found = ndcg(grades[rank_best(similarities, 10)], grades)
        assert found == pytest.approx(ndcg_score(grades[None], similarities[None], k=10))


def test_v_measure_in_reduced_coordinates_equals_that_of_k_means_on_the_vectors():
    vectors = RANDOM.standard_normal((50, 300)).astype(np.float32)
    ours = reduce_to_span(vectors)
    assert ours.shape == (50, 50)
    precise = vectors.astype(float)
    np.testing.assert_allclose(ours @ ours.T, precise @ precise.T, atol=1e-9)
    labels = np.arange(50) % 5
    means = MiniBatchKMeans(5, batch_size=512, n_init=1, random_state=0)
    assert v_measure(vectors, labels) == pytest.approx(v_measure_score(labels, means.fit_predict(precise)))


def test_pair_pool_measures_spearmans_correlation():
    cosines, targets = RANDOM.random(30), RANDOM.integers(0, 4, 30) / 3
    found = PairPool(cosines, targets, rank_correlation).measure(PLACES)
    expected = [stats.spearmanr(cosines[row], targets[row]).statistic for row in PLACES]
    np.testing.assert_allclose(found, expected)


def test_score_samples_uses_the_same_samples_for_all_encoders_of_50_examples_each():
    scores = RANDOM.random(200)
    found = score_samples(ScoredPool(scores))
    assert len(found) == SAMPLES
    np.testing.assert_allclose(score_samples(ScoredPool(scores + 1)), found + 1)
    assert found.mean() == pytest.approx(scores.mean(), abs=4 * scores.std() / np.sqrt(50 * SAMPLES))
    assert found.std() == pytest.approx(scores.std() / np.sqrt(50), rel=0.15)
