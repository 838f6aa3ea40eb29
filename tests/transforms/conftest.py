import os

import numpy as np
import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def limit_torch_threads():
    """Run torch with OMP_NUM_THREADS threads, or with one where that is not set."""
    before = torch.get_num_threads()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def embeddings():
    """Return a maker of float32 rows like an encoder's: anisotropic, rotated, with a common direction."""

    def make(n, d, seed=0, mean=0.5, decay=1.0):
        # The space depends on d alone, so that other seeds give other rows of the same corpus.
        space = np.random.default_rng(d)
        rotation, _ = np.linalg.qr(space.normal(size=(d, d)))
        direction = space.normal(size=d)
        spread = np.arange(1, d + 1) ** (-decay / 2)
        rows = np.random.default_rng(seed).normal(size=(n, d)) * spread @ rotation
        return (rows + mean * direction / np.linalg.norm(direction)).astype(np.float32)

    return make


@pytest.fixture
def torch_warns_always():
    """Show every torch warning each time instead of once per process."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.fixture(scope="session")
def with_flipped_bits():
    """Return a generator that rewrites a file `count` times, each time with another single bit flipped."""

    def flip(path, count):
        whole = path.read_bytes()
        for position in np.random.default_rng(0).integers(0, 8 * len(whole), count):
            flipped = bytearray(whole)
            flipped[position // 8] ^= 1 << position % 8
            path.write_bytes(flipped)
            yield

    return flip
