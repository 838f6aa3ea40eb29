"""Packages that import a name only on first access, so that importing the package loads neither torch nor models."""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

PackageHooks = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]
"""The `__getattr__`, `__dir__` and `__all__` of a package (PEP 562)."""


def load_lazily(package: str, init_file: str) -> PackageHooks:
    """Return the `__getattr__`, `__dir__` and `__all__` that make a package import its names on first access.

    They are returned in this order. The names and their modules are read from the type stub next to `__init__.py`,
    which type checkers read too.

    Args:
        package: the package's `__name__`.
        init_file: the package's `__file__`.
    """
    stub = ast.parse(Path(init_file).with_suffix(".pyi").read_text(encoding="utf-8"))
    modules = {
        alias.name: "." * node.level + (node.module or "")
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names = sorted(modules)

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name], package), name)

    return import_name, lambda: list(names), names
