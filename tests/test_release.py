"""`make release`, as far as it takes neither a network nor minutes."""

import shutil
import subprocess

import pytest

from tests.distributions import ROOT

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")


@pytest.fixture
def checkout(tmp_path):
    """Return a repository with the script and one commit."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/release", tmp_path / ".ci/release")
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message", "first")):
        subprocess.run([*GIT, *words], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize("change", ["new file", "changed file"])
def test_a_tree_with_uncommitted_changes_is_refused_in_one_sentence(checkout, change):
    path = checkout / ("new.txt" if change == "new file" else ".ci/release")
    path.write_text((path.read_text() if path.exists() else "") + "\n")

    done = subprocess.run([checkout / ".ci/release"], capture_output=True, text=True)

    assert done.returncode == 1
    assert done.stderr.startswith("make release: commit or remove what git status lists")
    assert len(done.stderr.splitlines()) == 1
    assert not (checkout / "build").exists()


def test_the_script_builds_existing_distributions_and_finds_the_pins_it_reads():
    script = (ROOT / ".ci/release").read_text()
    (listed,) = (line for line in script.splitlines() if line.startswith("distributions="))

    for folder in listed.removeprefix("distributions=(").removesuffix(")").split():
        assert (ROOT / folder / "pyproject.toml").is_file(), folder
    assert "cyclonedx-bom==" in (ROOT / "docker/Dockerfile").read_text()
    assert "\nhatchling==" in (ROOT / "constraints.txt").read_text()
