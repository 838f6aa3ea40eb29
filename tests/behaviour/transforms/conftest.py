"""Fixtures for transforms."""

from tests.transforms.conftest import *  # noqa: F403 - pytest finds fixtures by the names of this module
