"""Fixtures of the product's tests, and scoring processes that experiments share."""

from contextlib import nullcontext
from importlib import import_module

import pytest

from tests.conftest import *  # noqa: F403 - pytest finds fixtures by the names of this module
from tests.training.conftest import *  # noqa: F403

EVALUATING = ("lathe.training.evaluation.run", "research.domains.compare", "research.reze_experiment.run")
"""Modules that start scoring processes."""


@pytest.fixture(scope="module")
def kept_scoring_process(scoring_process):
    """Let evaluations, comparisons and experiments use one scoring process and leave it running."""
    with pytest.MonkeyPatch.context() as patch:
        for name in EVALUATING:
            patch.setattr(import_module(name), "Workers", lambda _processes: nullcontext(scoring_process))
        yield
