"""Fixtures for replicas."""

from contextlib import contextmanager

import pytest

from tests.service.redis.conftest import *  # noqa: F403 - pytest finds fixtures by the names of this module


@pytest.fixture(scope="module")
def redis_url(start_redis):
    return start_redis().url


@pytest.fixture(scope="module")
def start_replicas(start_app, new_home, redis_url):
    """Return a context manager with two servers that share a Redis and nothing else."""

    @contextmanager
    def start(**settings):
        told = {"redis_url": redis_url, "admin_keys": "for-all-replicas"} | settings
        with start_app(home=new_home(), **told) as here, start_app(home=new_home(), **told) as there:
            yield here, there

    return start
