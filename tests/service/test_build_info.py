from importlib.metadata import version

import pytest

from lathe.service.build_info import COMMIT_FILE, DISTRIBUTIONS, describe_build, find_mixed_installation, read_commit

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


def test_parts_of_different_places_or_versions_are_named_and_those_of_one_are_not():
    assert find_mixed_installation() is None
    for service in ("0.1.0 as a copy", "0.2.0 of the checkout /here"):
        origins = dict.fromkeys(DISTRIBUTIONS, "0.1.0 of the checkout /here") | {"lathe-service": service}
        assert f"lathe-service {service}" in find_mixed_installation(origins.get)


def test_a_checkout_has_no_commit_file():
    assert not COMMIT_FILE.exists()
