"""Results of evaluations, as the tests of their statistics build them."""

from tests.training.evaluation.conftest import *  # noqa: F403 - pytest finds fixtures by the names of this module
