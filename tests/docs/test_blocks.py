"""Every fenced block of README.md and docs/ does what its page says."""

import warnings

import pytest


@pytest.fixture(autouse=True, scope="module")
def default_warnings():
    """Show warnings of libraries while they are imported instead of raising them."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        import lathe.service.cli.main  # noqa: F401

        yield


def test_block_runs_without_error_and_prints_what_its_page_shows(block, reader):
    reader(block)
