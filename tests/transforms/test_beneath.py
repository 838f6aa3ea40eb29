import os

import pytest

from lathe.transforms.beneath import OutsideError, list_beneath, open_beneath, read_beneath


@pytest.fixture
def root(tmp_path):
    """Return a link to a folder with links that stay below it and links that leave it."""
    root = tmp_path / "disk" / "data"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "a.txt").write_text("a")
    (root / "sub" / "within").symlink_to("../a.txt")
    (root / "sub" / "deep" / "absolute").symlink_to(root / "a.txt")
    (root / "sub" / "folder").symlink_to("deep")
    (root / "sub" / "dangling").symlink_to("nothing")
    (tmp_path / "secret").write_text("secret")
    (root / "escapes").symlink_to("../../secret")
    (root / "elsewhere").symlink_to(tmp_path)
    (root / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to(root)
    return tmp_path / "link"


@pytest.mark.parametrize("name", ["a.txt", "sub/within", "sub/../a.txt", "sub/folder/absolute", "sub/folder/../within"])
def test_read_beneath_follows_links_and_dots_that_stay_below_the_root(root, name):
    assert read_beneath(root, name) == b"a"


@pytest.mark.parametrize("name", ["escapes", "elsewhere/secret", "../secret", "sub/../../data/a.txt", "/etc/passwd"])
def test_open_beneath_refuses_links_dots_and_absolute_paths_that_leave_the_root(root, name):
    with pytest.raises(OutsideError):
        open_beneath(root, name)


@pytest.mark.parametrize(
    ("name", "error"),
    [("gone", FileNotFoundError), ("sub", IsADirectoryError), ("a.txt/b", NotADirectoryError), ("loop", OSError)],
)
def test_open_beneath_raises_the_systems_error_for_missing_files_folders_and_link_loops(root, name, error):
    with pytest.raises(error):
        open_beneath(root, name)


def test_open_beneath_refuses_a_named_pipe_without_waiting(root):
    os.mkfifo(root / "pipe")
    with pytest.raises(OSError, match="not a plain file"):
        open_beneath(root, "pipe")


def test_list_beneath_lists_the_files_of_a_folder_unless_a_link_in_it_leaves_the_root(root):
    """For a path that is a file it returns None."""
    assert list_beneath(root, "sub") == ["sub/deep/absolute", "sub/within"]
    assert list_beneath(root, "a.txt") is None
    with pytest.raises(OutsideError):
        list_beneath(root, "")


def test_open_beneath_leaves_no_file_descriptor_open(root):
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208
    for name in ("sub/folder/absolute", "sub/folder/../within"):
        open_beneath(root, name).close()
    for name in ("escapes", "elsewhere/secret", "gone", "loop"):
        with pytest.raises(OSError):  # noqa: PT011
            open_beneath(root, name)
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208
