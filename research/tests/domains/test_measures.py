import numpy as np
import pytest
from scipy import stats
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import average_precision_score, ndcg_score, v_measure_score

from research.domains.measures import (
    average_precision,
    average_precisions,
    ndcg,
    rank_best,
    reduce_to_span,
    v_measure,
    v_measures,
)
from research.domains.samples import (
    SAMPLES,
    LabelledPool,
    PairPool,
    ScoredPool,
    concatenate_pools,
    score_samples,
)
from research.paper_findings.statistics import rank_correlation

RANDOM = np.random.default_rng(0)
PLACES = RANDOM.integers(0, 30, (20, 50))


def test_average_precisions_equal_scikit_learns_with_ties():
    similarities, labels = RANDOM.integers(0, 9, (20, 50)) / 9, RANDOM.integers(0, 2, (20, 50)).astype(float)
    expected = [average_precision_score(*row) for row in zip(labels, similarities, strict=True)]
    np.testing.assert_allclose(average_precisions(similarities, labels), expected)


def test_average_precisions_of_a_sample_without_a_positive_is_nan():
    found = average_precisions(np.array([[0.1, 0.2], [0.1, 0.2]]), np.array([[0.0, 0.0], [1.0, 0.0]]))
    assert np.isnan(found[0])
    assert found[1] == 0.5


def test_average_precision_equals_a_hand_computation():
    assert average_precision(np.array([True, False, True, False]), 3) == pytest.approx((1 + 2 / 3) / 3)
    assert average_precision(np.array([False, False]), 1) == 0


def test_ndcg_equals_scikit_learns_without_ties():
    for _ in range(20):
        similarities, grades = RANDOM.permutation(30).astype(float), RANDOM.integers(0, 4, 30).astype(float)
        found = ndcg(grades[rank_best(similarities, 10)], grades)
        assert found == pytest.approx(ndcg_score(grades[None], similarities[None], k=10))


def test_rank_best_sorts_by_similarity_and_keeps_the_order_of_ties():
    assert rank_best(np.array([0.1, 0.5, 0.5, 0.9, 0.5]), 3).tolist() == [3, 1, 2]
    assert rank_best(np.array([0.1, 0.5]), 10).tolist() == [1, 0]


def test_v_measure_in_reduced_coordinates_equals_that_of_k_means_on_the_vectors():
    vectors = RANDOM.standard_normal((50, 300)).astype(np.float32)
    ours = reduce_to_span(vectors)
    assert ours.shape == (50, 50)
    precise = vectors.astype(float)
    np.testing.assert_allclose(ours @ ours.T, precise @ precise.T, atol=1e-9)
    labels = np.arange(50) % 5
    means = MiniBatchKMeans(5, batch_size=512, n_init=1, random_state=0)
    assert v_measure(vectors, labels) == pytest.approx(v_measure_score(labels, means.fit_predict(precise)))


def test_v_measures_are_1_for_separate_clusters_and_nan_for_one_label():
    labels = np.arange(30) % 3
    vectors = (10 * np.eye(8)[labels] + 0.01 * RANDOM.standard_normal((30, 8))).astype(np.float32)
    drawn = np.stack([np.arange(30), np.full(30, 3)])
    found = v_measures(vectors, labels, drawn)
    assert found[0] == pytest.approx(1)
    assert np.isnan(found[1])


def test_v_measure_of_equal_vectors_with_several_labels_is_0():
    assert v_measure(np.ones((10, 4), np.float32), np.arange(10) % 3) == pytest.approx(0)


def test_pair_pool_measures_spearmans_correlation():
    cosines, targets = RANDOM.random(30), RANDOM.integers(0, 4, 30) / 3
    found = PairPool(cosines, targets, rank_correlation).measure(PLACES)
    expected = [stats.spearmanr(cosines[row], targets[row]).statistic for row in PLACES]
    np.testing.assert_allclose(found, expected)


def test_concatenate_pools_keeps_the_labels_of_data_sets_apart():
    first = LabelledPool(np.ones((3, 2), np.float32), np.array([0, 1, 1]))
    second = LabelledPool(np.zeros((2, 2), np.float32), np.array([1, 0]))
    found = concatenate_pools([first, second, first])
    assert isinstance(found, LabelledPool)
    assert found.labels.tolist() == [0, 1, 1, 3, 2, 4, 5, 5]
    assert len(found) == len(found.vectors) == 8
    scored = concatenate_pools([ScoredPool(np.array([1.0])), ScoredPool(np.array([0.0, 0.5]))])
    assert isinstance(scored, ScoredPool) and scored.scores.tolist() == [1.0, 0.0, 0.5]
    pairs = concatenate_pools([PairPool(np.ones(2), np.zeros(2), rank_correlation)] * 2)
    assert isinstance(pairs, PairPool) and len(pairs) == 4
    with pytest.raises(TypeError):
        concatenate_pools([first, ScoredPool(np.ones(1))])


def test_score_samples_uses_the_same_samples_for_all_encoders_of_50_examples_each():
    scores = RANDOM.random(200)
    found = score_samples(ScoredPool(scores))
    assert len(found) == SAMPLES
    np.testing.assert_allclose(score_samples(ScoredPool(scores + 1)), found + 1)
    assert found.mean() == pytest.approx(scores.mean(), abs=4 * scores.std() / np.sqrt(50 * SAMPLES))
    assert found.std() == pytest.approx(scores.std() / np.sqrt(50), rel=0.15)
