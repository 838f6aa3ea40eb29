import numpy as np
import pytest

from benchmarks.ann.spaces import find_space


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
