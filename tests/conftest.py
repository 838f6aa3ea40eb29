"""What the tests of several packages share."""

import warnings

import pytest

from training.encoders import Encoder
from training.spec import DEFAULT_ENCODER


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    """The real default encoder, from its offline package."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # importing torch and transformers warns of their own affairs
        return Encoder(DEFAULT_ENCODER)
