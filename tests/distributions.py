"""The project's distributions, as their pyproject.toml files describe them."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "transforms",
    "training",
    "service",
    "integrations/lathe-client",
    "integrations/langchain-lathe",
    "integrations/llama-index-embeddings-lathe",
    "integrations/lathe-haystack",
)
"""Folder of each distribution; one comes after those that it requires."""


@cache
def read_projects() -> dict[str, dict[str, Any]]:
    """Return the table `project` of each distribution by its name."""
    tables = (tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in FOLDERS)
    return {table["name"]: table for table in tables}


def list_extras() -> set[str]:
    """Return the extras of all distributions, each as `lathe-service[redis]`."""
    return {f"{name}[{extra}]" for name, table in read_projects().items() for extra in extras_of(table)}


def extras_of(table: dict[str, Any]) -> dict[str, list[str]]:
    """Return the optional dependencies of a distribution by extra."""
    found: dict[str, list[str]] = table.get("optional-dependencies", {})
    return found
