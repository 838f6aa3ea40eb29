"""Built-in sources `pydoc:` and `pydoc:topics`: English text that every Python installation contains."""

import ast
import re
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

MIN_CHARACTERS, MAX_CHARACTERS = 64, 512
"""Minimum and maximum number of characters of a paragraph; the range from which the mean-bias paper takes its
sentences."""


@cache
def read_docstring_paragraphs() -> list[str]:
    """Return the distinct paragraphs of 64 to 512 characters in the docstrings of Python's standard library. The result
    is cached.

    They are in the order of the library's files. The source files are parsed, never imported or run, which takes
    seconds.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    return distinct_paragraphs(
        text
        for path in sorted(library.rglob("*.py"))
        if _is_library_source(path, library)
        for text in read_docstrings(path)
    )


@cache
def read_topic_paragraphs() -> list[str]:
    """Return the distinct paragraphs of 64 to 512 characters in the language reference that Python's `help()` shows.
    The result is cached.
    """
    from pydoc_data.topics import topics

    return distinct_paragraphs(topics.values())


def _is_library_source(path: Path, library: Path) -> bool:
    """Return whether a file below `library` belongs to the standard library and is no test or installed package."""
    return not {"site-packages", "dist-packages", "test", "tests", "idle_test"} & set(path.relative_to(library).parts)


def read_docstrings(path: Path) -> Iterator[str]:
    """Yield the docstring of a Python file's module and of each class and function, or '' for one that has none.
    Nothing is yielded for a file that cannot be parsed.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates and files of other versions of Python
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def distinct_paragraphs(texts: Iterable[str]) -> list[str]:
    """Split texts into paragraphs, and return the distinct ones of 64 to 512 characters.

    Each is joined into one line.
    """
    paragraphs = (" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text))
    return list(dict.fromkeys(p for p in paragraphs if MIN_CHARACTERS <= len(p) <= MAX_CHARACTERS))
