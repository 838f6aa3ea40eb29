"""Fixtures of the product's tests, and scoring processes that experiments share."""

from contextlib import nullcontext
from importlib import import_module

import pytest

from lathe.training.evaluation.worker import Workers
from tests.conftest import *  # noqa: F403 - pytest finds fixtures by the names of this module
from tests.training.conftest import *  # noqa: F403

EVALUATING = ("lathe.training.evaluation.run", "research.domains.compare", "research.reze_experiment.run")
"""Modules that start scoring processes."""


@pytest.fixture(scope="session")
def scoring_process():
    """Start one scoring process for all experiments, since importing mteb takes seconds."""
    with Workers(1) as workers:
        yield workers


@pytest.fixture(scope="module")
def kept_scoring_process(scoring_process):
    """Let evaluations, comparisons and experiments use one scoring process and leave it running."""
    with pytest.MonkeyPatch.context() as patch:
        for name in EVALUATING:
            patch.setattr(import_module(name), "Workers", lambda _processes: nullcontext(scoring_process))
        yield
