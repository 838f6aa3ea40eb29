from importlib.metadata import version

import pytest

from lathe.service.build_info import COMMIT_FILE, describe_build, read_commit

VERSION = version("lathe-service")


def test_a_build_with_a_commit_names_it(tmp_path):
    file = tmp_path / "commit.txt"
    file.write_text("10a8ae63\n")
    assert read_commit(file) == "10a8ae63"
    assert describe_build(file) == f"{VERSION}, commit 10a8ae63"


@pytest.mark.parametrize("content", [None, "\n"])
def test_a_build_without_a_commit_names_none(tmp_path, content):
    file = tmp_path / "commit.txt"
    if content is not None:
        file.write_text(content)
    assert read_commit(file) is None
    assert describe_build(file) in (VERSION, f"{VERSION}, development")


def test_a_checkout_has_no_commit_file():
    assert not COMMIT_FILE.exists()
