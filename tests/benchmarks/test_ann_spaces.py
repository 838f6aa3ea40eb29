import numpy as np
import pytest

from benchmarks.ann.data import DataError
from benchmarks.ann.spaces import find_space, load_space, seed_steps
from lathe.service.errors import UnknownNameError
from lathe.transforms import Chain


@pytest.fixture(scope="module")
def wide(clusters):
    """Return 300 unit vectors of 384 dimensions, as the starter chains take."""
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
def test_space_ask_and_reduce_equal_the_unit_outputs_of_the_chain(wide, method, width, size):
    space = find_space(method, wide, 0)
    asked = space.reduce_queries(wide[:50])
    assert space.product is not None  # the quick way is the one that is compared
    assert asked.shape == (50, width) and asked.dtype == np.float32
    np.testing.assert_allclose(asked, space.chain.floats(wide[:50], size), rtol=0, atol=1e-5)
    np.testing.assert_allclose(space.reduce(wide[:50]), asked, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(asked, axis=1), 1, rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["pca:16,int8", "pca:16,binary", "int8", "binary"])
def test_space_of_codes_stores_decoded_codes_and_keeps_queries_as_floats(wide, method):
    space = find_space(method, wide, 0)
    asked, stored = space.reduce_queries(wide[:50]), space.reduce(wide[:50])
    np.testing.assert_allclose(asked, space.chain[:-1].floats(wide[:50]), rtol=0, atol=1e-5)
    np.testing.assert_allclose(stored, space.chain.floats(wide[:50]), rtol=0, atol=1e-5)
    assert asked.shape == stored.shape and 0 < np.abs(asked - stored).max()
    values = [len(np.unique(column)) for column in stored.T]
    assert max(values) <= (2 if method.endswith("binary") else 256)
    assert min(len(np.unique(column)) for column in asked.T) == 50


def test_only_spaces_of_stored_chains_have_a_digest(wide):
    digests = [find_space(method, wide, 0).digest for method in ("compact", "compact:64", "compact@1", "debias")]
    assert digests[0] == digests[1] == digests[2] != digests[3]
    assert len(digests[0]) == 64
    assert find_space("pca:8", wide, 0).digest is None


@pytest.mark.parametrize("method", ["nothing", "compact@7"])
def test_find_space_refuses_an_unknown_chain_by_name(wide, method):
    with pytest.raises(UnknownNameError, match=method.partition("@")[0]):
        find_space(method, wide, 0)


def test_find_space_refuses_a_chain_of_other_input_dimensions(vectors):
    with pytest.raises(DataError, match="compact takes vectors 384 wide, these are 32"):
        find_space("compact", vectors, 0)


def test_seeded_sets_the_seed_of_random_steps_that_have_none(wide):
    assert [step.spec().get("seed") for step in seed_steps("geopres:8,int8", 3)] == [3, None]
    assert [step.spec().get("seed") for step in seed_steps("r2,rand,geopres:8,seed=5", 3)] == [None, 3, 5]
    first, again, other = (find_space("random_projection:8", wide, seed).reduce_queries(wide) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01


@pytest.mark.parametrize(("method", "size"), [("compact:64", 64), ("pca:16,int8", None), ("none", None)])
def test_loaded_space_has_the_same_chain_and_outputs(tmp_path, wide, method, size):
    space = find_space(method, wide, 0)
    space.save(tmp_path / "chain")
    loaded = load_space(method, tmp_path / "chain", size)
    assert (loaded.chain == space.chain) if method != "none" else not (tmp_path / "chain").exists()
    np.testing.assert_array_equal(loaded.reduce_queries(wide), space.reduce_queries(wide))
    np.testing.assert_array_equal(loaded.reduce(wide), space.reduce(wide))
    assert loaded.chain is None or isinstance(loaded.chain, Chain)
