import numpy as np
import pytest

from benchmarks.codes.measure import K, measure_neighbours, ndcg, neighbour_methods
from benchmarks.codes.methods import family, pca_floats


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
