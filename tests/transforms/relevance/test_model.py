"""The probability of hits: what makes it higher, what leaves it as it is, what is refused, and what is stored."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from lathe.transforms.errors import ArtifactError, InputError, NotFittedError
from lathe.transforms.relevance import RelevanceModel, ScoreModel, Searches, fit_logistic, measure_auroc

D = 24
K = 10


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def rows():
    """Rows with a common direction, as those of encoders have."""
    return unit(np.random.default_rng(0).normal(size=(600, D)) + 0.4)


@pytest.fixture(scope="module")
def queries():
    """Queries of which every other one is near a row, and has its answer there."""
    random = np.random.default_rng(1)
    vectors = random.normal(size=(200, D)) + 0.4
    near = np.random.default_rng(0).normal(size=(600, D)) + 0.4
    vectors[::2] = near[:100] + 0.6 * random.normal(size=(100, D))
    return unit(vectors)


@pytest.fixture(scope="module")
def answered():
    return np.arange(200) % 2 == 0


def search(model, rows, queries):
    cosines = queries @ rows.T
    hits = np.argsort(-cosines, axis=1)[:, :K]
    return Searches(queries, np.take_along_axis(cosines, hits, 1), model.measure_hubs(rows)[hits]), hits


@pytest.fixture(params=["rows", "queries"])
def model(request, rows, queries):
    log = None if request.param == "rows" else unit(np.random.default_rng(2).normal(size=(120, D)) + 0.4)
    model = RelevanceModel.from_rows(rows, log)
    return model.fit(search(model, rows, queries)[0])


def test_hits_of_queries_with_an_answer_get_a_higher_probability(model, rows, queries, answered):
    probabilities = model.predict_proba(search(model, rows, queries)[0])
    assert probabilities.shape == (200, K)
    assert ((probabilities > 0) & (probabilities < 1)).all()
    assert measure_auroc(probabilities[:, 0], answered) > 0.8


def test_the_answer_is_more_probable_than_the_hits_behind_it(model, rows, queries):
    probabilities = model.predict_proba(search(model, rows, queries)[0])[::2]
    assert (probabilities[:, 0] > probabilities[:, 1:].max(1)).mean() > 0.8


def test_each_query_gets_the_same_probabilities_alone_as_among_others(model, rows, queries):
    searches, _ = search(model, rows, queries)
    alone = model.predict_proba(Searches(searches.queries[3:4], searches.scores[3:4], searches.hubs[3:4]))
    np.testing.assert_allclose(alone, model.predict_proba(searches)[3:4], atol=1e-6)


def test_a_rotation_of_the_space_changes_no_probability(model, rows, queries):
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(D, D)))[0]
    log = None if model.kind == "rows" else unit(model.references @ rotation)
    turned = RelevanceModel.from_rows(unit(rows @ rotation), log)
    searches, _ = search(turned, unit(rows @ rotation), unit(queries @ rotation))
    expected = model.predict_proba(search(model, rows, queries)[0])
    np.testing.assert_allclose(turned.fit(searches).predict_proba(searches), expected, atol=1e-3)


def test_a_higher_base_rate_raises_all_probabilities_and_keeps_their_order(model, rows, queries):
    searches, _ = search(model, rows, queries)
    before = model.predict_proba(searches)[:, 0]
    model.base_rate = 0.9
    after = model.predict_proba(searches)[:, 0]
    assert (after > before).all()
    assert (np.argsort(after) == np.argsort(before)).all()


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_judgements_set_the_level_of_the_probabilities(model, rows, queries, answered, share):
    searches, _ = search(model, rows, queries)
    relevant = np.zeros((200, K), bool)
    relevant[:, 0] = answered & (np.arange(200) < 400 * share)
    probabilities = model.fit_weights(searches, relevant).predict_proba(searches)
    assert probabilities[:, 0].mean() == pytest.approx(relevant[:, 0].mean(), abs=0.01)


def test_the_weights_are_those_of_a_logistic_regression():
    random = np.random.default_rng(0)
    features = random.normal(size=(300, K, 3))
    relevant = random.random((300, K)) < 1 / (1 + np.exp(-features @ [1.0, -0.5, 0.2] + 1))
    weights = fit_logistic(features, relevant, np.zeros((2, 4)), strength=2.0)
    for head, hits in enumerate((slice(0, 1), slice(1, None))):
        expected = LogisticRegression(C=1 / 2.0, tol=1e-8).fit(
            features[:, hits].reshape(-1, 3), relevant[:, hits].ravel()
        )
        np.testing.assert_allclose(weights[head], [*expected.coef_[0], *expected.intercept_], atol=1e-3)


def test_a_strong_prior_keeps_the_weights():
    prior = np.array([[1.0, 2.0, 3.0, 0.0]] * 2)
    random = np.random.default_rng(0)
    weights = fit_logistic(random.normal(size=(50, K, 3)), random.random((50, K)) < 0.5, prior, strength=1e9)
    np.testing.assert_allclose(weights[:, :3], prior[:, :3], atol=1e-4)


def test_the_hub_of_a_row_is_its_mean_cosine_with_the_ten_nearest_references(rows):
    log = unit(np.random.default_rng(2).normal(size=(120, D)))
    expected = np.sort(rows @ log.T, axis=1)[:, -10:].mean(1)
    np.testing.assert_allclose(RelevanceModel.from_rows(rows, log).measure_hubs(rows), expected, atol=1e-6)


def test_a_row_and_its_copies_are_not_their_own_neighbours(rows):
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -1)
    expected = np.sort(cosines, axis=1)[:, -10:].mean(1)
    model = RelevanceModel.from_rows(rows)
    np.testing.assert_allclose(model.measure_hubs(2 * rows), expected, atol=1e-6)


def test_a_stored_model_answers_the_same(model, rows, queries, tmp_path):
    searches, _ = search(model, rows, queries)
    model.save(tmp_path / "model")
    loaded = RelevanceModel.load(tmp_path / "model")
    assert np.array_equal(loaded.predict_proba(searches), model.predict_proba(searches))
    assert np.array_equal(loaded.measure_hubs(rows), model.measure_hubs(rows))


def test_a_stored_model_that_is_damaged_is_refused(model, tmp_path):
    model.save(tmp_path)
    file = tmp_path / "relevance.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(ArtifactError, match="SHA-256"):
        RelevanceModel.load(tmp_path)
    file.unlink()
    with pytest.raises(ArtifactError, match="no relevance model in"):
        RelevanceModel.load(tmp_path)


@pytest.mark.parametrize("change", [{"sha256": None}, {"kind": "no such"}])
def test_a_description_that_is_damaged_is_refused(model, change):
    with pytest.raises(ArtifactError):
        RelevanceModel.from_bytes(model.payload, model.describe() | change)


def test_a_model_that_is_not_fitted_says_so(rows, queries, tmp_path):
    model = RelevanceModel.from_rows(rows)
    with pytest.raises(NotFittedError):
        model.predict_proba(search(model, rows, queries)[0])
    with pytest.raises(NotFittedError):
        model.save(tmp_path)


@pytest.mark.parametrize("array", ["queries", "scores", "hubs"])
def test_nan_is_refused_in_fitting_and_in_prediction(model, rows, queries, array):
    searches, _ = search(model, rows, queries)
    arrays = {name: getattr(searches, name).copy() for name in ("queries", "scores", "hubs")}
    arrays[array][5, 1] = np.nan
    with pytest.raises(InputError, match="NaN"):
        model.predict_proba(Searches(**arrays))
    with pytest.raises(InputError, match="NaN"):
        model.fit(Searches(**arrays))


def test_what_cannot_be_fitted_is_refused(rows, queries):
    model = RelevanceModel.from_rows(rows)
    searches, _ = search(model, rows, queries)
    q, s, h = searches.queries, searches.scores, searches.hubs
    with pytest.raises(InputError, match="at least 10 hits, got 9"):
        Searches(q, s[:, :9], h[:, :9])
    with pytest.raises(InputError, match="do not correspond"):
        Searches(q[:5], s, h)
    with pytest.raises(InputError, match="at least 30 searches are needed, got 29"):
        model.fit(Searches(q[:29], s[:29], h[:29]))
    with pytest.raises(InputError, match="descending"):
        model.fit(Searches(q, s[:, ::-1], h))
    with pytest.raises(InputError, match="24 dimensions, got 23"):
        model.fit(Searches(q[:, 1:], s, h))
    with pytest.raises(InputError, match="judgements must be"):
        model.fit(searches).fit_weights(searches, np.zeros((200, 3), bool))


def test_rows_that_say_too_little_are_refused(rows):
    with pytest.raises(InputError, match="more than 10 rows are needed, got 10"):
        RelevanceModel.from_rows(rows[:10])
    with pytest.raises(InputError, match="at least 100 queries are needed, got 99"):
        RelevanceModel.from_rows(rows, rows[:99])
    with pytest.raises(InputError, match="23 dimensions, rows 24"):
        RelevanceModel.from_rows(rows, rows[:, 1:])
    with pytest.raises(InputError, match="between 0 and 1, got 1"):
        RelevanceModel.from_rows(rows, base_rate=1.0)
    with pytest.raises(InputError, match="24 dimensions, got 23"):
        RelevanceModel.from_rows(rows).measure_hubs(rows[:, 1:])


def test_a_model_of_scores_alone_imitates_the_probabilities_and_tells_right_from_wrong(model, rows, queries, answered):
    searches, _ = search(model, rows, queries)
    imitation = ScoreModel.imitate(model, searches)
    probabilities, expected = imitation.predict_proba(searches.scores), model.predict_proba(searches)
    # Without a prior, the mean of the fitted probabilities is that of what they are fitted to.
    np.testing.assert_allclose(probabilities[:, 0].mean(), expected[:, 0].mean(), rtol=1e-3)
    np.testing.assert_allclose(probabilities[:, 1:].mean(), expected[:, 1:].mean(), rtol=1e-3)
    assert np.corrcoef(probabilities[:, 0], expected[:, 0])[0, 1] > 0.7
    assert measure_auroc(probabilities[:, 0], answered) > 0.8
    with pytest.raises(InputError, match="at least 10 hits"):
        imitation.predict_proba(searches.scores[:, :9])
