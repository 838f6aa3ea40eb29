import numpy as np
import pytest
from scipy import stats
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import average_precision_score, ndcg_score, v_measure_score

from training.evaluation.statistics import rank_correlation
from training.research.domains.measures import (
    average_precision,
    average_precisions,
    ndcg,
    rank_best,
    reduce_to_span,
    v_measure,
    v_measures,
)
from training.research.domains.samples import (
    SAMPLES,
    LabelledPool,
    PairPool,
    ScoredPool,
    concatenate_pools,
    score_samples,
)

RANDOM = np.random.default_rng(0)
PLACES = RANDOM.integers(0, 30, (20, 50))


def test_average_precision_of_drawings_is_that_of_scikit_learn_with_ties_too():
    similarities, labels = RANDOM.integers(0, 9, (20, 50)) / 9, RANDOM.integers(0, 2, (20, 50)).astype(float)
    expected = [average_precision_score(*row) for row in zip(labels, similarities, strict=True)]
    np.testing.assert_allclose(average_precisions(similarities, labels), expected)


def test_a_drawing_without_a_positive_has_no_average_precision():
    found = average_precisions(np.array([[0.1, 0.2], [0.1, 0.2]]), np.array([[0.0, 0.0], [1.0, 0.0]]))
    assert np.isnan(found[0])
    assert found[1] == 0.5


def test_average_precision_of_a_ranking_by_hand():
    assert average_precision(np.array([True, False, True, False]), 3) == pytest.approx((1 + 2 / 3) / 3)
    assert average_precision(np.array([False, False]), 1) == 0


def test_ndcg_is_that_of_scikit_learn_where_no_similarities_are_equal():
    for _ in range(20):
        similarities, grades = RANDOM.permutation(30).astype(float), RANDOM.integers(0, 4, 30).astype(float)
        found = ndcg(grades[rank_best(similarities, 10)], grades)
        assert found == pytest.approx(ndcg_score(grades[None], similarities[None], k=10))


def test_the_best_places_are_in_order_and_equals_keep_theirs():
    assert rank_best(np.array([0.1, 0.5, 0.5, 0.9, 0.5]), 3).tolist() == [3, 1, 2]
    assert rank_best(np.array([0.1, 0.5]), 10).tolist() == [1, 0]


def test_k_means_in_own_coordinates_is_k_means():
    vectors = RANDOM.standard_normal((50, 300)).astype(np.float32)
    ours = reduce_to_span(vectors)
    assert ours.shape == (50, 50)
    precise = vectors.astype(float)
    np.testing.assert_allclose(ours @ ours.T, precise @ precise.T, atol=1e-9)
    labels = np.arange(50) % 5
    means = MiniBatchKMeans(5, batch_size=512, n_init=1, random_state=0)
    assert v_measure(vectors, labels) == pytest.approx(v_measure_score(labels, means.fit_predict(precise)))


def test_clusters_that_lie_apart_are_found_and_one_label_is_nothing_to_tell_apart():
    labels = np.arange(30) % 3
    vectors = (10 * np.eye(8)[labels] + 0.01 * RANDOM.standard_normal((30, 8))).astype(np.float32)
    drawn = np.stack([np.arange(30), np.full(30, 3)])
    found = v_measures(vectors, labels, drawn)
    assert found[0] == pytest.approx(1)
    assert np.isnan(found[1])


def test_equal_texts_with_several_labels_are_no_error():
    assert v_measure(np.ones((10, 4), np.float32), np.arange(10) % 3) == pytest.approx(0)


def test_a_sample_has_the_mean_of_the_examples_that_have_a_score():
    pool = ScoredPool(np.array([0.0, 1.0, np.nan]))
    found = pool.measure(np.array([[0, 1, 1, 1], [0, 2, 1, 2], [2, 2, 2, 2]]))
    assert found[:2].tolist() == [0.75, 0.5]
    assert np.isnan(found[2])


def test_samples_of_pairs_are_correlated_by_rank():
    cosines, targets = RANDOM.random(30), RANDOM.integers(0, 4, 30) / 3
    found = PairPool(cosines, targets, rank_correlation).measure(PLACES)
    expected = [stats.spearmanr(cosines[row], targets[row]).statistic for row in PLACES]
    np.testing.assert_allclose(found, expected)


def test_pools_of_data_sets_are_one_with_clusters_of_their_own():
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


def test_encoders_get_the_same_samples_and_their_scores_spread_as_means_of_fifty_do():
    scores = RANDOM.random(200)
    found = score_samples(ScoredPool(scores))
    assert len(found) == SAMPLES
    np.testing.assert_allclose(score_samples(ScoredPool(scores + 1)), found + 1)
    assert found.mean() == pytest.approx(scores.mean(), abs=4 * scores.std() / np.sqrt(50 * SAMPLES))
    assert found.std() == pytest.approx(scores.std() / np.sqrt(50), rel=0.15)
