import numpy as np
import pytest

from benchmarks.codes.__main__ import average_encoders
from benchmarks.codes.data import MANY_KINDS
from benchmarks.codes.measure import K, compute_ndcg, is_affordable, list_recipes, measure_neighbours
from benchmarks.codes.methods import fit_pca_floats, name_family


@pytest.fixture(scope="module")
def vectors():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2400, 48)) * np.arange(1, 49) ** -0.5 + 0.1
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.release
def test_neighbour_methods_stay_within_the_byte_budget_and_find_half_of_the_vectors_themselves(vectors):
    pytest.importorskip("faiss")
    names = []
    recipes = list(list_recipes(vectors[:1600], vectors[1600:], 12, seed=0))
    for method in (method for recipe in recipes for method in recipe.build()):
        assert method.size <= method.budget == 12, method.name
        found = method.search(vectors[1600:1620], 5)
        assert found.shape == (20, 5)
        assert np.mean([row in some for row, some in enumerate(found)]) > 0.5, method.name
        names.append(method.name)
    assert names[0] == "codes"
    assert set(names) <= {name for recipe in recipes for name in recipe.names}
    assert {name_family(name) for name in names} >= {"OPQ+PQ", "PCA, RaBitQ", "PCA, integers", "truncation, int8"}


@pytest.mark.release
def test_measured_recall_of_codes_is_below_the_rescored_recall_and_paired_with_itself_zero(vectors):
    """Full-width search finds each query itself first."""
    *_, rows = measure_neighbours(vectors[:600], [12], seeds=1, known=[])
    ours = next(row for row in rows if row["method"] == "codes")
    assert 0.2 < ours["recall_at_10"] < ours["recall_at_10_rescored_4x"] <= 1
    assert ours["ours_ahead"] == {"mean": 0, "ci95": 0}
    full = fit_pca_floats(vectors, vectors, 48).search(vectors[:50], K + 1)
    assert (full[:, 0] == np.arange(50)).all()


def test_a_resumed_benchmark_measures_only_the_methods_and_seeds_that_are_not_known(vectors):
    *_, whole = measure_neighbours(vectors[:600], [3], seeds=2, known=[])
    *_, first = measure_neighbours(vectors[:600], [3], seeds=1, known=[])
    known = [row for row in first if row["method"] != "codes, unweighted"]
    *_, resumed = measure_neighbours(vectors[:600], [3], seeds=2, known=known)
    assert [len(row["by_seed"]) for row in known] == [1] * len(known)
    for row in sorted(resumed, key=lambda row: row["method"]):
        other = next(one for one in whole if one["method"] == row["method"])
        assert (row["by_seed"], row["ours_ahead"]["mean"]) == (
            other["by_seed"],
            pytest.approx(other["ours_ahead"]["mean"]),
        )
        assert row["recall_at_10"] == pytest.approx(np.mean(row["by_seed"]))
        assert row["recall_at_10_rescored_4x"] == pytest.approx(other["recall_at_10_rescored_4x"])
    assert not list(measure_neighbours(vectors[:600], [3], seeds=2, known=resumed))


def test_methods_that_train_for_minutes_are_left_out_beyond_their_budgets_and_on_larger_corpora(vectors):
    recipes = {one.names[0]: one for one in list_recipes(vectors[:1600], vectors[1600:], 96, seed=0)}
    assert is_affordable(recipes["OPQ+PQ"], 24_000, 96, 0)
    assert not is_affordable(recipes["OPQ+PQ"], 100_000, 96, 0)
    assert not is_affordable(recipes["residual quantizer"], 24_000, 96, 0)
    assert is_affordable(recipes["PCA, RaBitQ of 1 bits"], 100_000, 192, 2)


def test_ndcg_matches_trec_evals_formula():
    ids = np.array([[3, 1, 9], [5, 6, 7]])
    found = compute_ndcg(ids, [{3: 1, 9: 2, 4: 1}, {8: 1}])
    ideal = 2 + 1 / np.log2(3) + 1 / np.log2(4)
    np.testing.assert_allclose(found, [(1 + 2 / np.log2(4)) / ideal, 0])


def test_averages_take_the_best_of_each_family_in_every_corpus_and_all_tasks():
    def method(name, recall):
        return {"budget": 24, "method": name, "recall_at_10": recall, "recall_at_10_rescored_4x": 1.0}

    one = {"methods": [method("PCA, RaBitQ of 1 bits", 0.2), method("PCA, RaBitQ of 2 bits", 0.6)]}
    other = {"methods": [method("PCA, RaBitQ of 1 bits", 0.4)]}
    tasks = [{"methods": [{"budget": 24, "method": "codes", "loss": {"mean": loss}}]} for loss in (-1.0, -3.0)]
    averages = average_encoders(
        {
            "a": {"neighbours": {"x": one, MANY_KINDS: other}, "tasks": {"t": tasks[0]}},
            "b": {"neighbours": {"x": other}, "tasks": {"t": tasks[1]}},
        }
    )
    (recall,), (loss,) = averages["neighbours"], averages["tasks"]
    assert (recall["family"], recall["corpora"], recall["recall_at_10"]) == ("PCA, RaBitQ", 2, pytest.approx(0.5))
    assert (loss["tasks"], loss["loss"]) == (2, -2)
