"""Which build of Lathe this is: its version, and the commit that it was built from."""

import platform
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import orjson

COMMIT_FILE = Path(__file__).with_name("commit.txt")
"""File with the commit in wheels and images. `make release` and docker/Dockerfile write it, a checkout has none."""


def read_commit(file: Path = COMMIT_FILE) -> str | None:
    """Return the hash of the commit that Lathe was built from, or None if it is not known."""
    try:
        return file.read_text().strip() or None
    except FileNotFoundError:
        return None


def describe_build(file: Path = COMMIT_FILE) -> str:
    """Return the version, and the commit if it is known or else that a checkout is used."""
    installed = version("lathe-service")
    if commit := read_commit(file):
        return f"{installed}, commit {commit}"
    return f"{installed}, development" if _is_editable() else installed


def describe_libraries() -> str:
    """Return the versions of Python and torch, without importing torch."""
    return f"Python {platform.python_version()}, torch {describe_package('torch')}"


def describe_package(package: str) -> str:
    """Return the version of an installed package, or "missing"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _is_editable() -> bool:
    """Return whether the code is that of a checkout, as pip's record of the installation tells (PEP 610)."""
    record = distribution("lathe-service").read_text("direct_url.json")
    if not record:
        return False
    return bool(orjson.loads(record).get("dir_info", {}).get("editable"))
