import numpy as np

from lathe.service.index.bridge import fit_bridge, load_bridge
from lathe.service.index.spec import IndexSpec
from lathe.transforms.learned.contrastive_alignment import MIN_STEPS, make_alignment

WIDTH = 12
SPEC = IndexSpec("new", None, WIDTH, "raw", "none", WIDTH, "raw")


def sample(count):
    return np.random.default_rng(2).normal(0.3, 1, (count, WIDTH)).astype(np.float32)


def rotated(vectors):
    return vectors @ np.linalg.qr(np.random.default_rng(0).normal(size=(WIDTH, WIDTH)))[0].astype(np.float32)


def test_training_is_shorter_for_more_dimensions_and_left_out_for_very_many():
    assert make_alignment(384, 384).steps == 300
    assert MIN_STEPS <= make_alignment(1024, 1024).steps < 300
    assert make_alignment(4096, 4096).kind == "procrustes"


def test_a_saved_bridge_says_which_map_it_is_and_maps_as_it_was_fitted(tmp_path):
    new = sample(200)
    fit_bridge(new, rotated(new), SPEC, tmp_path)
    bridge = load_bridge(tmp_path)
    assert (bridge.describe()["kind"], bridge.describe()["pairs"]) == ("contrastive_alignment", 160)
    expected = rotated(new)[:3] / np.linalg.norm(new[:3], axis=1, keepdims=True)
    np.testing.assert_allclose(bridge(new[:3]), expected, atol=0.05)


def test_no_bridge_is_saved_for_too_few_pairs(tmp_path):
    new = sample(50)
    fit_bridge(new, new, SPEC, tmp_path)
    assert load_bridge(tmp_path) is None


def test_no_bridge_is_saved_for_vectors_that_do_not_differ_and_the_index_moves_all_the_same(tmp_path):
    new = sample(200)
    same = np.repeat(new[:1], 200, axis=0)
    for pair in ((same, same), (new, same), (same, new)):
        fit_bridge(*pair, SPEC, tmp_path)
        assert load_bridge(tmp_path) is None
