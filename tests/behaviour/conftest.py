"""Fixtures of the service, which most of what a user sees needs."""

from tests.service.conftest import *  # noqa: F403 - pytest finds fixtures by the names of this module
