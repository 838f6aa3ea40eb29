"""Fixtures for encoders."""

from tests.training.conftest import *  # noqa: F403 - pytest finds fixtures by the names of this module
