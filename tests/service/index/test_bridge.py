import numpy as np
import pytest

from lathe.service.index.bridge import MIN_STEPS, choose_alignment, fit_bridge, list_alignments, load_bridge
from lathe.service.index.spec import IndexSpec
from lathe.transforms import LowRankAffine, Procrustes
from lathe.transforms.quality import cross_recall_at_k

WIDTH = 12
SPEC = IndexSpec("new", None, WIDTH, "raw", "none", WIDTH, "raw")


def sample(count):
    return np.random.default_rng(2).normal(0.3, 1, (count, WIDTH)).astype(np.float32)


def rotated(vectors):
    return vectors @ np.linalg.qr(np.random.default_rng(0).normal(size=(WIDTH, WIDTH)))[0].astype(np.float32)


def stretched(vectors):
    noise = 0.05 * np.random.default_rng(1).normal(size=vectors.shape)
    return (vectors @ np.diag(np.logspace(-1, 1, WIDTH)) + noise).astype(np.float32)


@pytest.mark.parametrize("make_old", [rotated, stretched])
def test_the_bridge_is_the_map_that_finds_most_for_held_out_texts(make_old):
    new = sample(500)
    old = make_old(new)
    chain, recall = choose_alignment(new, old)
    fitted_on = np.arange(500) % 5 > 0
    for step in (Procrustes(center=True), LowRankAffine()):
        mapped = step.fit(new[fitted_on], targets=old[fitted_on]).transform(new[~fitted_on])
        assert recall >= cross_recall_at_k(mapped, old[~fitted_on])
    assert recall == pytest.approx(cross_recall_at_k(chain.transform(new[~fitted_on]), old[~fitted_on]), abs=1e-6)
    assert (chain.transforms[0].kind == "procrustes") == (make_old is rotated)


def test_training_is_shorter_for_more_dimensions_and_left_out_for_very_many():
    steps = {d: [step.steps for step in list_alignments(d, d)[2:]] for d in (384, 1024, 4096)}
    assert steps[384] == [300]
    assert MIN_STEPS <= steps[1024][0] < 300
    assert steps[4096] == []


def test_a_saved_bridge_says_which_map_it_is_and_one_saved_without_it_still_loads(tmp_path):
    new = sample(200)
    fit_bridge(new, rotated(new), SPEC, tmp_path)
    bridge = load_bridge(tmp_path)
    assert (bridge.describe()["kind"], bridge.describe()["pairs"]) == ("procrustes", 160)
    expected = rotated(new)[:3] / np.linalg.norm(new[:3], axis=1, keepdims=True)
    np.testing.assert_allclose(bridge(new[:3]), expected, atol=1e-4)

    file = tmp_path / "alignment.json"
    file.write_text(file.read_text().replace('"kind": "procrustes"', '"later": 1'))
    assert load_bridge(tmp_path).kind is None


def test_no_bridge_is_saved_for_too_few_pairs(tmp_path):
    new = sample(50)
    fit_bridge(new, new, SPEC, tmp_path)
    assert load_bridge(tmp_path) is None
