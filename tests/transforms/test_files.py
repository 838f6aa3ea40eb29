import os
import stat

import pytest

from lathe.transforms.files import continue_file, create_file, make_folder, make_root, replace_synced, write_synced


@pytest.fixture
def permissive():
    """A umask that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def test_files_and_folders_created_in_a_private_folder_are_private_whatever_the_umask(tmp_path, permissive):
    make_folder(tmp_path / "private", private=True)
    make_folder(tmp_path / "private" / "a" / "b")
    write_synced(tmp_path / "private" / "a" / "b" / "file", b"x")
    replace_synced(tmp_path / "private" / "a" / "file", b"x")
    continue_file(tmp_path / "private" / "continued").close()
    for path in (tmp_path / "private").rglob("*"):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


def test_files_and_folders_outside_a_private_folder_follow_the_umask_unless_private_is_set(tmp_path, permissive):
    (tmp_path / "open").mkdir(0o755)
    os.umask(0o027)
    write_synced(tmp_path / "open" / "file", b"x")
    make_folder(tmp_path / "open" / "folder")
    assert (mode(tmp_path / "open" / "file"), mode(tmp_path / "open" / "folder")) == (0o640, 0o750)
    write_synced(tmp_path / "open" / "private", b"x", private=True)
    assert mode(tmp_path / "open" / "private") == 0o600


@pytest.mark.parametrize("link", ["symbolic", "hard"])
@pytest.mark.parametrize("staged", [False, True], ids=["written", "replaced"])
def test_writing_a_file_replaces_a_link_and_leaves_its_target_unchanged(tmp_path, link, staged):
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("mine")
    planted = tmp_path / ".file" if staged else path
    planted.symlink_to(victim) if link == "symbolic" else planted.hardlink_to(victim)
    (replace_synced if staged else write_synced)(path, b"new")
    assert (victim.read_text(), path.read_text()) == ("mine", "new") and not path.is_symlink()


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_continue_file_refuses_symbolic_and_hard_links(tmp_path, link):
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("mine")
    path.symlink_to(victim) if link == "symbolic" else path.hardlink_to(victim)
    with pytest.raises(OSError, match="Too many levels|one name"):
        continue_file(path)
    assert victim.read_text() == "mine"


def test_make_folder_refuses_a_link_to_a_folder_and_make_root_accepts_one(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "link")
    make_root(tmp_path / "link")


def test_create_file_truncates_an_existing_file(tmp_path):
    (tmp_path / "file").write_text("old and long")
    with create_file(tmp_path / "file") as file:
        file.write(b"new")
    assert (tmp_path / "file").read_text() == "new"
