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
