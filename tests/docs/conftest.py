"""Blocks of the pages as tests."""

from pathlib import Path

import pytest

from lathe.training.datasets.layouts import LAYOUTS
from lathe.transforms.base import Transform
from lathe.transforms.kinds import KINDS
from tests.docs.blocks import all_blocks
from tests.docs.page import SECONDS, Page, folder_of
from tests.docs.workshop import Workshop


def pytest_addoption(parser):
    parser.addoption("--all-blocks", action="store_true", help="run the long blocks of docs/ too")
    parser.addoption("--page", action="append", help="only blocks of this page, such as docs/serving.md")


def pytest_generate_tests(metafunc):
    if "block" not in metafunc.fixturenames:
        return
    wanted, every = metafunc.config.getoption("page", None), metafunc.config.getoption("all_blocks", False)
    chosen = [
        block
        for block in all_blocks()
        if (every or block.directive.when != "long") and (not wanted or block.page in wanted)
    ]
    metafunc.parametrize(
        "block",
        [
            pytest.param(
                block,
                id=f"{block.page}:{block.line}",
                marks=[pytest.mark.timeout(SECONDS["long"])]
                + [pytest.mark.services] * (block.directive.when == "services"),
            )
            for block in chosen
        ],
    )


@pytest.fixture(scope="session")
def workshop(tmp_path_factory, out_of_domain):
    """Return the shared servers and state folder. Each server starts when a block first needs it."""
    made = Workshop(tmp_path_factory.mktemp("docs"), out_of_domain)
    yield made
    made.close()


@pytest.fixture(scope="session")
def reader(workshop):
    """Return a function that runs a block on its page. A page is closed when the next begins."""
    current: dict[str, Page] = {}

    known, layouts = dict(Transform.defined), dict(LAYOUTS)

    def run(block):
        if block.page not in current:
            close()
            current[block.page] = Page(workshop, workshop.root / "pages" / folder_of(block.page))
        current[block.page].run(block)

    def close():
        for page in current.values():
            page.close()
        current.clear()
        for kind in Transform.defined.keys() - known.keys() - KINDS.keys():  # a page may define one of its own
            del Transform.defined[kind]
        for task in LAYOUTS.keys() - layouts.keys():
            del LAYOUTS[task]

    yield run
    close()


@pytest.fixture
def scratch_page(workshop, tmp_path: Path):
    """Return an empty page to test the runner with."""
    page = Page(workshop, tmp_path / "page")
    yield page
    page.close()
