"""README.md and the pages of docs/ are short, and use the words of the field."""

import re

import pytest

from tests.docs.blocks import ROOT
from tests.docs.test_lines import without_code

MAX_WORDS_OF_A_PAGE = 1_800
MAX_WORDS = 40_000
"""Of README.md and all pages that are not generated: tables count, code blocks and comments do not."""

PAGES = [ROOT / "README.md"] + [
    page for page in sorted((ROOT / "docs").rglob("*.md")) if ROOT / "docs/reference" not in page.parents
]

COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
NO_PROSE = re.compile(r"`[^`]*`|(?<=\])\([^)\s]*\)")
"""Code within a line, and targets of links."""

BETTER = {
    r"(?<![Tt]here )\b(is|are|was|were) no (?!longer\b|more\b)\w+": "is not a …, or has no …",
    r"\b(that|those) of\b": "the noun again",
    r"\bbeside\b": "next to, compared with, or in addition to",
    r"\bspace ids?\b": "`space_id`, or embedding space",
    r"\blearn(ed|t) by heart\b": "data leakage",
    r"\bdirected rows?\b": "nonzero rows",
    r"\bthe way back\b": "how to undo it, or roll back",
    r"\blearnt\b": "learned",
    r"\banew\b": "again",
    r"\bso as to\b": "to",
    r"\bthereof\b": "of the noun",
    r"\bnobody's\b": "without an owner",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\btaken up again\b": "resumed",
}
"""What to write in place of what a pattern matches."""


def count_words(text):
    """Count the words of a page outside code blocks and comments."""
    return len(COMMENT.sub("", without_code(text)).split())


def find_unusual_words(text):
    """Return what the patterns match in the prose of a page, each with what to write instead."""
    prose = " ".join(NO_PROSE.sub("", COMMENT.sub("", without_code(text))).split())
    return [(match[0], better) for pattern, better in BETTER.items() for match in re.finditer(pattern, prose)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_is_short_and_uses_the_words_of_the_field(page):
    text = page.read_text()
    assert count_words(text) <= MAX_WORDS_OF_A_PAGE
    assert find_unusual_words(text) == []


def test_all_pages_together_are_short():
    assert sum(count_words(page.read_text()) for page in PAGES) <= MAX_WORDS


def test_unusual_words_are_found_across_lines_and_not_in_code():
    page = (
        "There is no such size.\n\n```sh\necho those of\n```\n\n`those of` [sizes](beside.md) are that\nof a vector.\n"
    )
    assert find_unusual_words(page) == [("that of", BETTER[r"\b(that|those) of\b"])]
    assert count_words(page) == 13
