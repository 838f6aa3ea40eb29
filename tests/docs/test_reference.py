"""The pages of docs/reference are what the code says now."""

import re

import pytest

from docs.generate import OUT, pages
from lathe import training, transforms
from lathe.service.settings import Settings


@pytest.fixture(scope="module")
def made():
    """Return the reference pages as generated from the code."""
    return pages()


def test_reference_pages_equal_the_generated_ones(made):
    written = {path.name: path.read_text() for path in OUT.glob("*.md")}
    stale = [name for name, text in made.items() if written.get(name) != text]
    assert not stale and written.keys() == made.keys(), f"run `make reference`: {stale}"


def test_reference_names_every_export_and_setting_and_the_main_routes_and_commands(made):
    for page, library in (("python.md", transforms), ("training.md", training)):
        named = re.compile(r"^### (\w+)$|`(\w+)`", re.MULTILINE).findall(made[page])
        assert set(library.__all__) <= {name for pair in named for name in pair}
    assert [n for n in Settings.model_fields if f"`LATHE_{n.upper()}`" not in made["settings.md"]] == []
    for call in ("POST /embed", "POST /v1/embeddings", "POST /reduce", "POST /fit-transform", "PUT /indexes/{name}"):
        assert f"## {call}\n" in made["http.md"]
    for command in ("lathe fit", "lathe index import", "lathe train reze"):
        assert f"## {command}\n" in made["commands.md"]
