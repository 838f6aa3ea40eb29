import numpy as np
import pytest

from benchmarks.codes.data import HalvedSearch
from benchmarks.codes.measure import MEASURES, K, compute_ndcg, measure_recipe, summarize
from benchmarks.codes.methods import OURS, PRODUCT, list_recipes, rank_best
from benchmarks.codes.packages import list_package_recipes


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1700, 96)) * np.arange(1, 97) ** -0.5 + 0.1
    vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    gains = [{int(row): 1} for row in np.argmax(vectors[1600:] @ vectors[800:1600].T, axis=1)]
    return HalvedSearch(vectors[:800], vectors[800:1600], vectors[1600:], gains)


@pytest.mark.release
def test_all_methods_stay_within_the_bytes_and_find_half_of_the_nearest_among_forty(data):
    pytest.importorskip("faiss")
    nearest = rank_best(data.queries @ data.searched.T, K)
    families = set()
    for recipe in [*list_recipes(96, 24), *list_package_recipes(96, 24)]:
        rows = measure_recipe(recipe, data, False, 24, nearest)
        assert all(row["bytes"] <= 24 for row in rows)
        families |= {row["family"] for row in rows}
        # RaBitQ's factors leave bytes for few dimensions of many bits.
        if "RaBitQ" not in recipe.name:
            assert all(np.mean(row["recall_at_10_rescored_4x"]) > 0.5 for row in rows), recipe.name
            assert all(np.mean(row["recall_at_10"]) <= np.mean(row["recall_at_10_rescored_4x"]) for row in rows)
    assert families >= {OURS, PRODUCT, "FAISS OPQ", "FAISS RaBitQ", "FAISS TurboQuant", "FAISS residual quantizer"}


def test_ndcg_matches_trec_evals_formula():
    ids = np.array([[3, 1, 9], [5, 6, 7]])
    found = compute_ndcg(ids, [{3: 1, 9: 2, 4: 1}, {8: 1}])
    ideal = 2 + 1 / np.log2(3) + 1 / np.log2(4)
    np.testing.assert_allclose(found, [(1 + 2 / np.log2(4)) / ideal, 0])


def test_a_summary_takes_each_familys_best_setting_by_encoder_and_measure_and_pairs_the_queries():
    def method(family, setting, recalls, gains):
        return {"family": family, "setting": setting} | dict(zip(MEASURES, (recalls, recalls, gains), strict=True))

    ours = [method(OURS, "", [0.5, 0.7], [0.4, 0.6]), method(PRODUCT, "", [0.5, 0.9], [0.4, 0.6])]
    rivals = [method("RaBitQ", "1 bit", [0.2, 0.4], [0.5, 0.5]), method("RaBitQ", "2 bits", [0.4, 0.6], [0.3, 0.3])]
    cell = {"fit": "other half", "budget": 24, "ndcg_of_floats": 0.6, "methods": ours + rivals}
    summary = summarize([{"encoder": "a", "search": s} | cell for s in "xy"] + [{"encoder": "b"} | cell], ["a"])
    rows = {(row["measure"], row["family"]): row for row in summary}
    recall, ndcg = rows["recall_at_10", "RaBitQ"], rows["ndcg_at_10", "RaBitQ"]
    assert (recall["searches"], recall["mean"], ndcg["mean"]) == (2, pytest.approx(50), pytest.approx(50))
    assert ndcg["change"] == pytest.approx(-10)
    # Both queries gain 10 points: no spread.
    assert recall["ours_ahead"] == {"mean": pytest.approx(10), "ci95": pytest.approx(0, abs=1e-9)}
    # 10 and 30 points: each search has a variance of the mean of 100, so half the interval is 1.96 · √200 / 2.
    assert recall["product_ahead"] == {"mean": pytest.approx(20), "ci95": pytest.approx(1.96 * 200**0.5 / 2)}
