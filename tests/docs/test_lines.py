"""Lines of README.md and docs/ are short enough to read in a terminal or a diff."""

import re

import pytest

from tests.docs.blocks import BLOCK, ROOT, pages

MAX_CHARACTERS = 120
GENERATED = {ROOT / "docs/reference"}
UNBREAKABLE = re.compile(r"^\|.*$|^<!--.*?-->$|(?<=\])\([^)\s]*\)", re.MULTILINE)
"""Rows of tables, comments, and targets of links."""


written_pages = pytest.mark.parametrize(
    "page",
    [page for page in pages() if page.parent not in GENERATED],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)


def without_code(text):
    """Return the page with empty lines for its code blocks."""
    return BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)


def long_lines(text):
    """Return the numbers of the lines with too many characters outside code, tables, comments and link targets."""
    prose = UNBREAKABLE.sub("", without_code(text))
    return [number for number, line in enumerate(prose.splitlines(), 1) if len(line) > MAX_CHARACTERS]


def broken_rows(text):
    """Return the numbers of the lines that begin a row of a table and do not end it."""
    lines = enumerate(without_code(text).splitlines(), 1)
    return [number for number, line in lines if line.startswith("|") and not line.endswith("|")]


@written_pages
def test_page_has_no_line_over_120_characters(page):
    assert long_lines(page.read_text()) == []


@written_pages
def test_page_has_no_wrapped_table_row(page):
    assert broken_rows(page.read_text()) == []


def test_readme_has_few_words_and_shows_output_at_once():
    text = (ROOT / "README.md").read_text()
    assert text[: text.index("```text")].count("\n") < 25
    prose = re.sub(r"<!--.*?-->|^\|.*$|\]\([^)]*\)", "", without_code(text), flags=re.MULTILINE)
    assert len(prose.split()) <= 600
