import os

import pytest

from transforms.beneath import OutsideError, list_beneath, open_beneath, read_beneath


@pytest.fixture
def root(tmp_path):
    """A folder reached by a link, with links that stay in it and links that leave it."""
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
def test_a_file_is_read_through_any_link_that_stays_below(root, name):
    assert read_beneath(root, name) == b"a"


@pytest.mark.parametrize("name", ["escapes", "elsewhere/secret", "../secret", "sub/../../data/a.txt", "/etc/passwd"])
def test_nothing_leads_out(root, name):
    with pytest.raises(OutsideError):
        open_beneath(root, name)


@pytest.mark.parametrize(
    ("name", "error"),
    [("gone", FileNotFoundError), ("sub", IsADirectoryError), ("a.txt/b", NotADirectoryError), ("loop", OSError)],
)
def test_what_is_no_file_is_an_error(root, name, error):
    with pytest.raises(error):
        open_beneath(root, name)


def test_a_pipe_is_refused_instead_of_waited_for(root):
    os.mkfifo(root / "pipe")
    with pytest.raises(OSError, match="not a plain file"):
        open_beneath(root, "pipe")


def test_a_folder_is_listed_unless_something_in_it_leads_out(root):
    assert list_beneath(root, "sub") == ["sub/deep/absolute", "sub/within"]
    assert list_beneath(root, "a.txt") is None
    with pytest.raises(OutsideError):
        list_beneath(root, "")


def test_no_descriptor_is_left_open(root):
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208
    for name in ("sub/folder/absolute", "sub/folder/../within"):
        open_beneath(root, name).close()
    for name in ("escapes", "elsewhere/secret", "gone", "loop"):
        with pytest.raises(OSError):  # noqa: PT011
            open_beneath(root, name)
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208
