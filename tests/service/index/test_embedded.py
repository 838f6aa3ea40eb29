"""State of the embedded index has one owner: an object assigns its own attributes, and others call its methods."""

import ast
from pathlib import Path

from lathe.service.index import embedded

FOLDER = Path(embedded.__file__).parent
MODULES = {path.relative_to(FOLDER).as_posix(): ast.parse(path.read_bytes()) for path in FOLDER.rglob("*.py")}
ENGINES = {"graphs/faiss_graph.py", "graphs/scoring.py"}
"""Modules that set attributes of FAISS's objects, which has no methods for them."""
USERS = {"indexes.py", "maintenance.py"}
"""Modules that hold an open index, as `index` or `self.index`."""


def assigned_attributes(tree):
    """Yield line and text of each attribute that is assigned or deleted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node.lineno, ast.unparse(node)


def attributes_of_attributes(tree):
    """Yield line and text of each attribute of an attribute of an open index."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            if ast.unparse(node.value.value) in ("index", "self.index"):
                yield node.lineno, ast.unparse(node)


def test_an_attribute_is_assigned_by_its_own_object_only():
    foreign = [
        (module, line, text)
        for module in MODULES.keys() - ENGINES
        for line, text in assigned_attributes(MODULES[module])
        if text.count(".") > 1 or text[:5] != "self."
    ]
    assert not foreign


def test_users_of_an_index_do_not_reach_through_its_attributes():
    assert [found for module in USERS for found in attributes_of_attributes(MODULES[module])] == []
