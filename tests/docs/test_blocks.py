"""Every fenced block of README.md and docs/ does what its page says."""

import warnings

import pytest


@pytest.fixture(autouse=True, scope="module")
def libraries_speak():
    """Importing torch and others warns of their own affairs."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        import service.cli.main  # noqa: F401

        yield


def test_the_block_does_what_its_page_says(block, reader, recorded):
    with recorded(block):
        reader(block)
