"""Fixtures for exports."""

from tests.training.conftest import *  # noqa: F403 - pytest finds fixtures by the names of this module
from tests.training.export.conftest import *  # noqa: F403
