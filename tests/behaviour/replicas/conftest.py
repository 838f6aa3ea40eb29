"""Fixtures for replicas."""

from tests.service.redis.conftest import *  # noqa: F403 - pytest finds fixtures by the names of this module
