"""Built-in sources `pydoc:` and `pydoc:topics`: English text that every Python installation contains."""

import ast
import gc
import re
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

MIN_CHARACTERS, MAX_CHARACTERS = 64, 512
"""Minimum and maximum number of characters of a paragraph; the range from which the mean-bias paper takes its
sentences."""

HOLDS_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)
"""Nodes of a syntax tree below which there may be a definition."""


@cache
def read_docstring_paragraphs() -> list[str]:
    """Return the distinct paragraphs of 64 to 512 characters in the docstrings of Python's standard library. The result
    is cached.

    They are in the order of the library's files. The source files are parsed, never imported or run, which takes
    two seconds.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in sorted(library.rglob("*.py")) if _is_library_source(path, library)]
    # A syntax tree is a million objects without a cycle. In a process that has imported PyTorch, looking for cycles
    # among them and all others takes as long again as parsing.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return distinct_paragraphs(text for path in paths for text in read_docstrings(path))
    finally:
        if collecting:
            gc.enable()


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
    # Breadth first, as `ast.walk`, but without expressions, which hold no definitions and are most of a tree.
    nodes = deque[ast.AST]([tree])
    while nodes:
        node = nodes.popleft()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        for _, field in ast.iter_fields(node):
            if isinstance(field, list):
                nodes.extend(child for child in field if isinstance(child, HOLDS_STATEMENTS))


def distinct_paragraphs(texts: Iterable[str]) -> list[str]:
    """Split texts into paragraphs, and return the distinct ones of 64 to 512 characters.

    Each is joined into one line.
    """
    paragraphs = (" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text))
    return list(dict.fromkeys(p for p in paragraphs if MIN_CHARACTERS <= len(p) <= MAX_CHARACTERS))
