"""Blocks of the pages as tests."""

import shutil

import pytest

from lathe.training.datasets.layouts import LAYOUTS
from lathe.transforms.base import Transform
from lathe.transforms.kinds import KINDS
from tests.docs.blocks import all_blocks
from tests.docs.page import SECONDS, Page, folder_of
from tests.docs.workshop import Workshop

FIRST_PAGES = ("README.md", "docs/quickstart.md")
"""Pages whose blocks every change runs: `make test` the first, without its blocks that take services, and `make
test-services` the rest. `make docs` runs all pages."""


def pytest_addoption(parser):
    parser.addoption("--all-blocks", action="store_true", help="run the long blocks of docs/ too")
    parser.addoption("--page", action="append", help="only blocks of this page, such as docs/serving.md")


def pytest_generate_tests(metafunc):
    if "blocks" not in metafunc.fixturenames:
        return
    every = metafunc.config.getoption("all_blocks", False)
    wanted = metafunc.config.getoption("page", None) or (None if every else FIRST_PAGES)
    groups: dict[str, list] = {}
    for block in all_blocks():
        if (wanted is None or block.page in wanted) and (every or block.directive.when != "long"):
            apart = block.directive.when == "services" and block.page == FIRST_PAGES[0] and not every
            groups.setdefault(block.page + " with services" * apart, []).append(block)
    metafunc.parametrize(
        "blocks",
        [
            pytest.param(
                blocks,
                id=name,
                marks=[pytest.mark.timeout(SECONDS["long"])] + [pytest.mark.services] * (name != FIRST_PAGES[0]),
            )
            for name, blocks in groups.items()
        ],
    )


@pytest.fixture(scope="session")
def workshop(tmp_path_factory, fill_home):
    """Return the shared servers and state folder. Each server starts when a block first needs it."""
    made = Workshop(tmp_path_factory.mktemp("docs"), fill_home)
    yield made
    made.close()


@pytest.fixture
def page(workshop):
    """Return a function that opens a page by its path, such as `docs/serving.md`. It is closed after the test."""
    known, layouts, opened = dict(Transform.defined), dict(LAYOUTS), []

    def open_page(path):
        folder = workshop.root / "pages" / folder_of(path)
        shutil.rmtree(folder, ignore_errors=True)  # of its other blocks
        opened.append(Page(workshop, folder))
        return opened[-1]

    yield open_page
    for one in opened:
        one.close()
    for kind in Transform.defined.keys() - known.keys() - KINDS.keys():  # a page may define one of its own
        del Transform.defined[kind]
    for task in LAYOUTS.keys() - layouts.keys():
        del LAYOUTS[task]
