"""What the distributions say of themselves: one version, the license, what they import, and names that are ours."""

import ast
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.distributions import FOLDERS, ROOT, extras_of, list_extras, read_projects

NAMES = dict(zip(FOLDERS, read_projects(), strict=True))
PACKAGES = {"transforms": "lathe", "training": "lathe", "service": "lathe", "integrations/lathe-client": "src"}
"""Folder of the code of each distribution whose libraries are all installed here."""

WITHOUT_REQUIREMENT = {"flash_attn": "used if somebody installed it, on GPUs"}
"""Modules that no extra brings, each with the reason."""


def requirements_of(table):
    """Return the requirements of a distribution, with those of its extras."""
    lines = [*table["dependencies"], *(line for extra in extras_of(table).values() for line in extra)]
    return [Requirement(line) for line in lines]


def imported_modules(folder):
    """Return the top-level modules that the files of a folder import, without Python's and Lathe's own."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(str(node.module).partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"lathe", "lathe_client"}


@pytest.mark.parametrize("folder", PACKAGES)
def test_a_distribution_requires_every_library_that_its_code_imports(folder):
    required = {canonicalize_name(one.name) for one in requirements_of(read_projects()[NAMES[folder]])}
    installed = packages_distributions()
    for module in imported_modules(ROOT / folder / PACKAGES[folder]) - WITHOUT_REQUIREMENT.keys():
        owners = {canonicalize_name(name) for name in installed.get(module, [module])}
        assert owners & required, f"{NAMES[folder]} imports {module} and requires none of {owners}"


def test_the_transforms_require_numpy_torch_and_safetensors_alone():
    assert {Requirement(line).name for line in read_projects()["lathe-transforms"]["dependencies"]} == {
        "numpy",
        "torch",
        "safetensors",
    }


def test_all_distributions_have_the_one_version_and_require_one_another_in_that_version():
    version = (ROOT / "VERSION").read_text().strip()
    for folder in FOLDERS:
        text = (ROOT / folder / "pyproject.toml").read_text()
        assert 'dynamic = ["version"]' in text and re.search(r'^path = "(\.\./)+VERSION"$', text, re.MULTILINE), folder
    for name in ("lathe-training", "lathe-service"):
        own = [
            one for one in requirements_of(read_projects()[name]) if one.name.startswith("lathe-") and not one.extras
        ]
        assert own and all(str(one.specifier) == f"=={version}" for one in own), name


def test_extras_name_only_extras_that_exist():
    for table in read_projects().values():
        for one in requirements_of(table):
            if one.name in read_projects():
                assert {f"{one.name}[{extra}]" for extra in one.extras} <= list_extras(), f"{table['name']}: {one}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_distribution_carries_the_license_and_a_page(folder):
    assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert NAMES[folder] in (ROOT / folder / "README.md").read_text()


INSTALLED = re.compile(r"pip3? install (?:-\S+ )*(?P<words>[^\n`#&;]*)")
"""A command that installs packages, with the words after it."""

REQUIREMENT = re.compile(r"(?<![\w./@:-])(?P<name>[a-z][\w.-]*lathe[\w.-]*|lathe[\w.-]*)(?:\[(?P<extras>[^\]]*)\])?")
"""A distribution whose name has the word lathe, as pip takes it, perhaps with extras."""

BRACKETS = re.compile(r"(?<![\w/\"'{$-])(?P<name>lathe)\\{0,2}\[[a-z{]")
"""`lathe[…`, which names the extras of a distribution `lathe`: there is one on PyPI, and it is not ours."""


def tracked_texts():
    """Yield the path and the text of every tracked file but measured results and license texts."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        path = ROOT / name
        if path.is_file() and path.suffix in {".py", ".pyi", ".md", ".toml", ".yml", ".yaml", ".txt", ".js", ".sh", ""}:
            if not name.startswith(("benchmarks/results/", "tests/test_distributions.py", "tests/docs/test_runner.py")):
                yield name, path.read_text(encoding="utf-8")


def find_foreign_names(text):
    """Return the distributions and extras with the word lathe that a text installs and that are not ours."""
    mistakes = [match["name"] for match in BRACKETS.finditer(text)]
    for command in INSTALLED.finditer(text):
        for match in REQUIREMENT.finditer(command["words"].replace("\\", "")):
            name, extras = match["name"].rstrip(".-"), match["extras"]
            mistakes += [] if name in read_projects() else [name]
            named = [f"{name}[{extra}]" for extra in (extras or "").split(",") if extra and "{" not in extra]
            mistakes += [one for one in named if name in read_projects() and one not in list_extras()]
    return mistakes


def test_no_text_and_no_message_installs_a_distribution_or_an_extra_that_is_not_ours():
    found = {name: mistakes for name, text in tracked_texts() if (mistakes := find_foreign_names(text))}
    assert found == {}


def test_every_tracked_pyproject_is_listed():
    listed = subprocess.run(
        ["git", "ls-files", "*/pyproject.toml"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert {str(Path(name).parent) for name in listed.splitlines()} == set(FOLDERS)
    assert Path(ROOT / "pyproject.toml").read_text().count("[project]") == 0
