"""The pages of docs/reference and llms.txt are what the code says now."""

import re

import pytest

from docs.generate import INDEX, OUT, pages
from lathe import training, transforms
from lathe.service.settings import Settings
from tests.docs.blocks import ROOT


@pytest.fixture(scope="module")
def made():
    """Return the reference pages as generated from the code."""
    return pages()


def test_reference_pages_equal_the_generated_ones(made):
    written = {path: path.read_text() for path in [*OUT.glob("*.md"), INDEX]}
    stale = [path.name for path, text in made.items() if written.get(path) != text]
    assert not stale and written.keys() == made.keys(), f"run `make reference`: {stale}"


def test_reference_names_every_export_and_setting_and_the_main_routes_and_commands(made):
    for page, library in (("python.md", transforms), ("training.md", training)):
        named = re.compile(r"^### (\w+)$|`(\w+)`", re.MULTILINE).findall(made[OUT / page])
        assert set(library.__all__) <= {name for pair in named for name in pair}
    assert [n for n in Settings.model_fields if f"`LATHE_{n.upper()}`" not in made[OUT / "settings.md"]] == []
    for call in ("POST /embed", "POST /v1/embeddings", "POST /reduce", "POST /fit-transform", "PUT /indexes/{name}"):
        assert f"## {call}\n" in made[OUT / "http.md"]
    for command in ("lathe fit", "lathe index import", "lathe train reze"):
        assert f"## {command}\n" in made[OUT / "commands.md"]


def test_index_for_assistants_has_every_page_command_call_and_name(made):
    index = made[INDEX]
    for page in (page.relative_to(ROOT).as_posix() for page in ROOT.glob("docs/**/*.md")):
        assert f"({page})" in index or page == "docs/README.md"
    for entry in ("lathe index import", "POST /embed", "GeoPres", "load_encoder"):
        assert f"- `{entry}`: " in index
    assert set(re.findall(r"^## (lathe .+)$", made[OUT / "commands.md"], re.MULTILINE)) <= set(
        re.findall(r"^- `(lathe .+?)`", index, re.MULTILINE)
    )
