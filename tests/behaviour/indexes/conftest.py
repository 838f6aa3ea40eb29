"""Fixtures for indexes."""

from tests.service.index.conftest import *  # noqa: F403 - pytest finds fixtures by the names of this module
