"""Real English that every Python installation carries: the built-in source `pydoc:`."""

import ast
import re
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

SHORTEST, LONGEST = 64, 512
"""Characters of a paragraph; the band the mean-bias paper takes its sentences from."""


@cache
def docstring_paragraphs() -> list[str]:
    """Distinct paragraphs of the standard library's docstrings, in the order of its files.

    The source files are parsed, never imported or run.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    return keep(text for path in sorted(library.rglob("*.py")) if wanted(path, library) for text in docstrings(path))


@cache
def topic_paragraphs() -> list[str]:
    """Distinct paragraphs of the language reference that `help()` shows."""
    from pydoc_data.topics import topics

    return keep(topics.values())


def wanted(path: Path, library: Path) -> bool:
    """Whether a file is the library's own, neither a test nor an installed package."""
    return not {"site-packages", "dist-packages", "test", "tests", "idle_test"} & set(path.relative_to(library).parts)


def docstrings(path: Path) -> Iterator[str]:
    """Docstrings of a file's module, classes and functions."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates and files of other versions of Python
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def keep(texts: Iterable[str]) -> list[str]:
    """Their paragraphs on one line each, without repetitions and what is too short or long."""
    paragraphs = (" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text))
    return list(dict.fromkeys(p for p in paragraphs if SHORTEST <= len(p) <= LONGEST))
