"""Which build of Lathe this is: its version, and the commit that it was built from."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

import orjson

DISTRIBUTIONS = ("lathe-transforms", "lathe-training", "lathe-service")
"""Distributions that together are Lathe."""

COMMIT_FILE = Path(__file__).with_name("commit.txt")
"""File with the commit in wheels and images. `make release` and docker/Dockerfile write it, a checkout has none."""


def read_commit(file: Path = COMMIT_FILE) -> str | None:
    """Return the hash of the commit that Lathe was built from, or None if it is not known."""
    try:
        return file.read_text().strip() or None
    except FileNotFoundError:
        return None


def describe_build(file: Path = COMMIT_FILE) -> str:
    """Return the version of Lathe as text, with its commit if that is known, or with "development" for a checkout."""
    installed = version("lathe-service")
    if commit := read_commit(file):
        return f"{installed}, commit {commit}"
    return installed if _find_checkout("lathe-service") is None else f"{installed}, development"


def find_mixed_installation(find_origin: Callable[[str], str] | None = None) -> str | None:
    """Return a sentence if the installed packages of Lathe are not all from one version and place, or None if they are.

    Each must be of one version, and all from one checkout or none: after an update of a checkout, copies would be old.

    Args:
        find_origin: returns version and place of a distribution; None looks them up.
    """
    origins = {name: (find_origin or _describe_origin)(name) for name in DISTRIBUTIONS}
    if len(set(origins.values())) == 1:
        return None
    parts = ", ".join(f"{name} {origin}" for name, origin in origins.items())
    return (
        f"the parts of Lathe come from different places: {parts}; install all from one, for a checkout by "
        "pip install --editable ./transforms --editable './training[offline]' --editable ./service"
    )


def describe_package(package: str) -> str:
    """Return the version of an installed package, or "missing" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _describe_origin(name: str) -> str:
    checkout = _find_checkout(name)
    return f"{version(name)} " + ("as a copy" if checkout is None else f"of the checkout {checkout}")


def _find_checkout(name: str) -> str | None:
    """Return the folder of the checkout whose code an installed package runs, or None if the code was copied.

    pip's record of the installation tells it (PEP 610).
    """
    record = orjson.loads(distribution(name).read_text("direct_url.json") or "{}")
    if not record.get("dir_info", {}).get("editable"):
        return None
    return str(Path(unquote(urlsplit(record["url"]).path)).parent)
