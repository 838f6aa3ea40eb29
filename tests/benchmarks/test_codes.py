import numpy as np
import pytest

from benchmarks.codes.__main__ import average_encoders
from benchmarks.codes.measure import K, measure_neighbours, ndcg, neighbour_methods
from benchmarks.codes.methods import family, pca_floats
from benchmarks.codes.weightings import summarize


@pytest.fixture(scope="module")
def vectors():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2400, 48)) * np.arange(1, 49) ** -0.5 + 0.1
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_neighbour_methods_stay_within_the_byte_budget_and_find_half_of_the_vectors_themselves(vectors):
    pytest.importorskip("faiss")
    names = []
    for method in neighbour_methods(vectors[:1600], vectors[1600:], 12, seed=0):
        assert method.size <= method.budget == 12, method.name
        found = method.search(vectors[1600:1620], 5)
        assert found.shape == (20, 5)
        assert np.mean([row in some for row, some in enumerate(found)]) > 0.5, method.name
        names.append(method.name)
    assert names[0] == "codes"
    assert {family(name) for name in names} >= {"OPQ+PQ", "PCA, RaBitQ", "PCA, integers", "truncation, int8"}


def test_measured_recall_of_codes_is_below_the_rescored_recall_and_paired_with_itself_zero(vectors):
    """Full-width search finds each query itself first."""
    rows = measure_neighbours(vectors[:600], [12], seeds=1)
    ours = next(row for row in rows if row["method"] == "codes")
    assert 0.2 < ours["recall_at_10"] < ours["recall_at_10_rescored_4x"] <= 1
    assert ours["ours_ahead"] == {"mean": 0, "ci95": 0}
    full = pca_floats(vectors, vectors, 48).search(vectors[:50], K + 1)
    assert (full[:, 0] == np.arange(50)).all()


def test_ndcg_matches_trec_evals_formula():
    ids = np.array([[3, 1, 9], [5, 6, 7]])
    found = ndcg(ids, [{3: 1, 9: 2, 4: 1}, {8: 1}])
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
            "a": {"neighbours": {"x": one}, "tasks": {"t": tasks[0]}},
            "b": {"neighbours": {"x": other}, "tasks": {"t": tasks[1]}},
        }
    )
    (recall,), (loss,) = averages["neighbours"], averages["tasks"]
    assert (recall["family"], recall["corpora"], recall["recall_at_10"]) == ("PCA, RaBitQ", 2, pytest.approx(0.5))
    assert (loss["tasks"], loss["loss"]) == (2, -2)


def test_a_measure_that_orders_weightings_as_tasks_do_has_rho_1_and_the_loss_of_its_choice():
    cell = {"budget": 24, "loss": [-3.0, -1.0, -2.0, -4.0, -5.0], "retrieval": [3, 5, 4, 2, 1]}
    found = summarize([cell | {"recall_at_10": [3, 1, 2, 4, 5], "by_split_half": 1, "by_recall": 4}], 24)
    assert (found["split_half_rho"], found["recall_rho"]) == (pytest.approx(1), pytest.approx(-1))
    assert (found["loss"]["by split-half"], found["loss"]["by recall"]) == (-1, -5)
    assert found["loss"]["best in hindsight"] == -1 and found["changed_by_split_half"] == 1
