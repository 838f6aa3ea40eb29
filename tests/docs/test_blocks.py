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


def test_each_block_of_a_page_runs_without_error_and_prints_what_the_page_shows(blocks, page):
    opened = page(blocks[0].page)
    for block in blocks:
        opened.run(block)
