import numpy as np
import pytest

from benchmarks.ann.data import DataError
from benchmarks.ann.spaces import find_space, is_fitted_here, load_space, seeded
from service.errors import UnknownNameError
from transforms import Chain
from transforms.errors import TransformError


@pytest.fixture(scope="module")
def wide(clusters):
    """As wide as the starter chains take them, of length 1."""
    rows = clusters(300, 384)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("method", "width", "size"),
    [
        ("compact", 128, None),
        ("compact:64", 64, 64),
        ("debias", 384, None),
        ("geopres:16", 16, None),
        ("pca:12", 12, None),
        ("random_projection:16", 16, None),
    ],
)
def test_a_query_asked_is_what_the_chain_makes_of_it(wide, method, width, size):
    space = find_space(method, wide, 0)
    asked = space.ask(wide[:50])
    assert space.product is not None  # the quick way is the one that is compared
    assert asked.shape == (50, width) and asked.dtype == np.float32
    np.testing.assert_allclose(asked, space.chain.floats(wide[:50], size), rtol=0, atol=1e-5)
    np.testing.assert_allclose(space.reduce(wide[:50]), asked, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(asked, axis=1), 1, rtol=0, atol=1e-5)


def test_one_query_is_asked_as_many_are(wide):
    space = find_space("compact", wide, 0)
    np.testing.assert_allclose(np.vstack([space.ask(row[None]) for row in wide[:5]]), space.ask(wide[:5]), atol=1e-6)


@pytest.mark.parametrize("method", ["pca:16,int8", "pca:16,binary", "int8", "binary"])
def test_codes_are_searched_with_queries_that_stay_floats(wide, method):
    space = find_space(method, wide, 0)
    asked, stored = space.ask(wide[:50]), space.reduce(wide[:50])
    np.testing.assert_allclose(asked, space.chain[:-1].floats(wide[:50]), rtol=0, atol=1e-5)
    np.testing.assert_allclose(stored, space.chain.floats(wide[:50]), rtol=0, atol=1e-5)
    assert asked.shape == stored.shape and 0 < np.abs(asked - stored).max()
    values = [len(np.unique(column)) for column in stored.T]
    assert max(values) <= (2 if method.endswith("binary") else 256)
    assert min(len(np.unique(column)) for column in asked.T) == 50


def test_full_width_is_left_as_it_is(wide):
    space = find_space("none", wide, 0)
    assert space.ask(wide) is wide and space.reduce(wide) is wide and space.digest is None


def test_only_a_chain_that_was_loaded_has_a_digest(wide):
    digests = [find_space(method, wide, 0).digest for method in ("compact", "compact:64", "compact@1", "debias")]
    assert digests[0] == digests[1] == digests[2] != digests[3]
    assert len(digests[0]) == 64
    assert find_space("pca:8", wide, 0).digest is None


@pytest.mark.parametrize("method", ["nothing", "compact@7"])
def test_a_chain_that_nobody_knows_is_named(wide, method):
    with pytest.raises(UnknownNameError, match=method.partition("@")[0]):
        find_space(method, wide, 0)


def test_a_chain_for_other_vectors_is_refused_with_both_widths(vectors):
    with pytest.raises(DataError, match="compact takes vectors 384 wide, these are 32"):
        find_space("compact", vectors, 0)


@pytest.mark.parametrize("method", ["geopres:999", "compact:999", "compact:0", "pca:x"])
def test_a_size_that_cannot_be_had_is_refused(wide, method):
    with pytest.raises(TransformError):
        find_space(method, wide, 0)


@pytest.mark.parametrize(
    ("method", "fitted"),
    [("none", False), ("compact", False), ("compact:64", False), ("pca:8", True), ("geopres:8,int8", True)]
    + [("int8", True), ("compact@1", False), ("pca-of-mine", False)],
)
def test_steps_are_told_from_names_of_chains(method, fitted):
    assert is_fitted_here(method) is fitted


def test_steps_that_draw_take_the_seed_and_only_they(wide):
    assert [step.spec().get("seed") for step in seeded("geopres:8,int8", 3)] == [3, None]
    assert [step.spec().get("seed") for step in seeded("r2,rand,geopres:8,seed=5", 3)] == [None, 3, 5]
    first, again, other = (find_space("random_projection:8", wide, seed).ask(wide) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01


@pytest.mark.parametrize(("method", "size"), [("compact:64", 64), ("pca:16,int8", None), ("none", None)])
def test_what_was_saved_asks_and_reduces_the_same(tmp_path, wide, method, size):
    space = find_space(method, wide, 0)
    space.save(tmp_path / "chain")
    loaded = load_space(method, tmp_path / "chain", size)
    assert (loaded.chain == space.chain) if method != "none" else not (tmp_path / "chain").exists()
    np.testing.assert_array_equal(loaded.ask(wide), space.ask(wide))
    np.testing.assert_array_equal(loaded.reduce(wide), space.reduce(wide))
    assert loaded.chain is None or isinstance(loaded.chain, Chain)
