"""The search path by which Python finds Lathe in a checkout."""

import os
from pathlib import Path

ROOTS = ("transforms", "training", "service")
"""Folders of the distributions, each of which holds a part of the package `lathe`."""


def search_path(checkout: Path) -> str:
    """Return the PYTHONPATH with which a process imports the Lathe of a checkout instead of the installed one."""
    return os.pathsep.join(str(checkout / root) for root in ROOTS)
