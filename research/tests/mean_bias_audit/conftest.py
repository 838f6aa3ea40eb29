"""Results of evaluations, as the tests of their statistics build them."""

from research.tests.paper_findings.conftest import *  # noqa: F403 - pytest finds fixtures by the names of this module
