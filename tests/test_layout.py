"""Where tests lie.

    tests/<package>/<folder>/test_<x>.py    tests <package>/lathe/<package>/<folder>/<x>.py, or the folder of that name
    tests/behaviour/<subject>/test_<x>.py   tests what a user sees, for which no single file of a package answers

Folders of `tests` about something else than the packages (`docs`, `wheels`, …), and files directly in it, are free.
"""

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PACKAGES = {name: TESTS.parent / name / "lathe" / name for name in ("transforms", "training", "service")}


def describe(path: Path) -> str:
    """Return a path as it is written from the root of the repository."""
    return path.relative_to(TESTS.parent).as_posix()


def list_misplaced_tests(package: str) -> list[str]:
    """List the test files of a package that have no module or folder to test, each with what to do."""
    misplaced = []
    for test in sorted((TESTS / package).rglob("test_*.py")):
        module = PACKAGES[package] / test.relative_to(TESTS / package).with_name(test.stem.removeprefix("test_"))
        if not module.with_suffix(".py").exists() and not module.is_dir():
            misplaced.append(
                f"{describe(test)}: there is neither {describe(module)}.py nor the folder {describe(module)}; "
                "name and place the file after the module that it tests, "
                "or move it to tests/behaviour/<subject> if it tests what a user sees of several modules"
            )
    return misplaced


def list_unmatched_folders(package: str) -> list[str]:
    """List the folders with tests or helpers of a package that the package itself does not have."""
    folders = {file.parent for file in (TESTS / package).rglob("*") if file.is_file() and file.suffix != ".pyc"}
    return [
        f"{describe(folder)}: there is no folder {describe(PACKAGES[package] / folder.relative_to(TESTS / package))}; "
        "move its files to the folder of the module that they test, or to tests/behaviour/<subject>"
        for folder in sorted(folders)
        if not (PACKAGES[package] / folder.relative_to(TESTS / package)).is_dir()
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_test_file_stands_where_its_module_stands_in_the_package(package):
    misplaced = list_misplaced_tests(package)
    assert not misplaced, "\n".join(misplaced)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_of_tests_has_a_folder_in_the_package(package):
    unmatched = list_unmatched_folders(package)
    assert not unmatched, "\n".join(unmatched)


def test_every_file_of_behaviour_lies_in_the_folder_of_a_subject():
    tests = sorted((TESTS / "behaviour").rglob("test_*.py"))
    misplaced = [describe(test) for test in tests if test.parent.parent != TESTS / "behaviour"]
    assert tests and not misplaced, f"tests of behaviour are tests/behaviour/<subject>/test_<what>.py: {misplaced}"
