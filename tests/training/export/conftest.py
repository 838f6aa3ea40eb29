"""Chains fitted on real vectors, for exports of every format."""

import functools

import numpy as np
import pytest

from lathe.transforms import Chain, parse_steps
from lathe.transforms.codes import Int8

FITTED, NEW = 250, 12


@pytest.fixture(scope="session")
def texts(paragraphs):
    """Return real English texts short enough to be encoded in seconds."""
    return [text for text in paragraphs if len(text) < 160][: FITTED + NEW]


@pytest.fixture(scope="session")
def vectors(encoder, texts):
    """Return the vectors that chains are fitted on."""
    return encoder.encode(texts[:FITTED]).vectors


@pytest.fixture(scope="session")
def new_texts(texts):
    """Return texts that no chain was fitted on and no export is checked on."""
    return [*texts[FITTED:], "naïve Ωmega 東京 🚲", "short"]


@pytest.fixture(scope="session")
def new_vectors(encoder, new_texts):
    return encoder.encode(new_texts).vectors


@pytest.fixture(scope="session")
def fitted(encoder, vectors):
    """Return a function that fits a chain on the encoder's vectors, each chain once."""

    @functools.cache
    def make(steps, normalize=True):
        chain = Chain(parse_steps(steps), normalize)
        # Any vectors of other dimensions do for the targets of steps that are fitted on pairs.
        paired = any(step.paired for step in chain.transforms)
        chain.fit(vectors, targets=np.abs(vectors[:, :40]) if paired else None)
        chain.metadata = {"encoder": encoder.describe()}
        return chain

    return make


@pytest.fixture(scope="session")
def decided():
    """Return a function that masks the numbers `(n, k)` whose codes float32 rounding cannot change."""

    def decide(chain, rows):
        quantizer = chain.quantizer
        floats = Chain(chain.float_steps, chain.normalize).transform(rows)
        if isinstance(quantizer, Int8):
            steps = floats / quantizer.scale.numpy()
            clear = np.abs(steps - np.floor(steps) - 0.5) > 1e-3
        else:
            clear = np.abs(floats) > 1e-6
        assert np.count_nonzero(~clear) <= max(1, 0.02 * clear.size)  # of a single row one number may lie on an edge
        return clear

    return decide
