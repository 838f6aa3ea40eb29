"""Fixtures for fits, and a Ray engine on this machine."""

import warnings

import pytest

from lathe.training.distributed import RayEngine
from lathe.training.distributed.engine import connect_cluster
from tests.training.conftest import *  # noqa: F403 - pytest finds fixtures by the names of this module


@pytest.fixture(scope="session")
def engine():
    """Return an engine of two workers of one thread on a local Ray, with room for two more of another process."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # importing Ray warns of its own affairs
        with connect_cluster(None, cores=4):
            engine = RayEngine(count=2, threads=1)
            yield engine
            engine.close()
