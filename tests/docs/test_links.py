"""Every link of README.md, docs/ and the pages of measurements leads to a file, and to a heading, that is there."""

import re

import pytest

from tests.docs.blocks import ROOT, pages

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
FOLDERS_OF_MEASUREMENTS = ("benchmarks", "research", "tests")
MEASUREMENTS = [page for folder in FOLDERS_OF_MEASUREMENTS for page in sorted((ROOT / folder).rglob("*.md"))]


def anchors(text):
    """Return the headings as GitHub turns them into anchors."""
    found = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", [*pages(), *MEASUREMENTS], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_local_links_of_a_page_lead_to_existing_files_and_headings(page):
    lost = []
    for target in LINK.findall(CODE.sub("", page.read_text())):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there.read_text())):
            lost.append(target)
    assert lost == []
