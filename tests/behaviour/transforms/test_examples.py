"""The examples in docstrings run and give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import lathe.transforms

MODULES = sorted(found.name for found in pkgutil.walk_packages(lathe.transforms.__path__, "lathe.transforms."))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


CLASSES = sorted(name for name in lathe.transforms.__all__ if isinstance(getattr(lathe.transforms, name), type))


@pytest.mark.parametrize("name", [name for name in CLASSES if not name.endswith("Error")])
def test_every_public_class_but_errors_has_an_example(name):
    assert ">>> " in getattr(lathe.transforms, name).__doc__
