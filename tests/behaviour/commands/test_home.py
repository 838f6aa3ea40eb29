"""Commands where a home directory is unknown: of this user, as in a container, or of a user that does not exist."""

import pwd

import pytest

from lathe.service.settings import read_settings
from lathe.transforms.files import expand_home
from tests.helpers import require_one_line

NOBODY = "~no-such-user/folder"


@pytest.fixture
def homeless(monkeypatch):
    """This user has no HOME and no entry among the system's users."""

    def find_nobody(number):
        raise KeyError(number)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", find_nobody)


def test_without_a_home_directory_the_error_names_the_variable(homeless, monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="^LATHE_HOME: .*~/.lathe is in a home directory that is unknown here"):
        read_settings()
    monkeypatch.setenv("LATHE_HOME", str(tmp_path))
    assert read_settings().home == tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ("chains", "import", NOBODY),
        ("encoders", "add", "mine", "--model", NOBODY),
        ("embed", "--source", NOBODY, "--out", "x.npy"),
        ("evaluate", "--suite", NOBODY, "--out", "x"),
    ],
)
def test_a_path_below_the_home_of_nobody_ends_commands_with_one_line(run, command):
    require_one_line(run(*command), NOBODY)


def test_a_known_home_directory_is_put_in_place_of_the_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand_home("~/.lathe") == tmp_path / ".lathe"
    assert str(expand_home("a/~b")) == "a/~b"
