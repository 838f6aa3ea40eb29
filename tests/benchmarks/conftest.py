"""Small vectors that have neighbours, and a state folder of the tests' own."""

import os
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
ROWS, WIDTH = 400, 32


@pytest.fixture(autouse=True, scope="module")
def isolated_home(tmp_path_factory):
    """Start in the repository root, without LATHE_ variables and with an empty state folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("LATHE_")]:
            patch.delenv(name)
        patch.setenv("LATHE_HOME", str(tmp_path_factory.mktemp("home")))
        patch.chdir(ROOT)
        yield


def make_clusters(rows, width, seed=0):
    """Return vectors `(rows, width)` of 20 clusters, of any length."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(20, width))
    return (centres[rng.integers(20, size=rows)] + 0.4 * rng.normal(size=(rows, width))).astype(np.float32)


@pytest.fixture(scope="session")
def clusters():
    """Return the maker of clustered vectors."""
    return make_clusters


@pytest.fixture(scope="session")
def vectors():
    """Return 400 distinct vectors of 32 dimensions."""
    return make_clusters(ROWS, WIDTH)


@pytest.fixture(scope="session")
def unit(vectors):
    """Return `vectors` scaled to length 1."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
