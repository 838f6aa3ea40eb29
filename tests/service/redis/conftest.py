import numpy as np
import pytest

from lathe.transforms import Chain, parse_steps


@pytest.fixture(scope="session")
def rows():
    """Return rows `(60, 8)`."""
    return np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32) + 1


@pytest.fixture(scope="session")
def chains():
    """Fit three small chains with the fingerprint of an encoder that no server has."""

    def fitted(seed):
        found = Chain(parse_steps("r2,geopres:steps=2,dimensions=4"))
        found.fit(np.random.default_rng(seed).normal(size=(60, 8)) + 1)
        found.metadata = {"encoder": {"fingerprint": "enc"}}
        return found

    return [fitted(seed) for seed in range(3)]
