"""Permissions of the state folder and the data root, and warnings about a state folder that cannot be written."""

import os
import resource
import stat
from contextlib import contextmanager

import pytest

from lathe.service.app import create_app
from lathe.service.chains.registry import STARTERS, Registry
from lathe.service.home import Home
from lathe.service.jobs.sources import resolve_allowed_path
from lathe.service.settings import read_settings
from lathe.training.errors import SourceError
from lathe.training.sources.source import open_source
from lathe.transforms.artifact import read_serialized_artifact
from lathe.transforms.files import replace_synced


def readable_by_others(folder):
    """List the files and folders that group or others have any permission for."""
    found = [folder, *folder.rglob("*")]
    return [path for path in found if not path.is_symlink() and path.stat().st_mode & 0o077]


@contextmanager
def full_disk():
    """Let no file grow during a block, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_opening_a_state_folder_removes_permissions_of_others_but_follows_no_links(tmp_path):
    outside, home = tmp_path / "outside", Home(tmp_path / "home")
    outside.write_text("another's")
    outside.chmod(0o644)
    (home.jobs / "one").mkdir(parents=True)
    (home.jobs / "one" / "request.json").write_text("{}")
    (home.jobs / "one" / "linked").symlink_to(outside)
    (home.jobs / "one" / "twin").hardlink_to(outside)
    for path in (home.root, home.jobs, home.jobs / "one", home.jobs / "one" / "request.json"):
        path.chmod(0o755)
    assert home.open() is None
    home.restrict_permissions()
    assert readable_by_others(home.root) == [home.jobs / "one" / "twin"]
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644


def test_the_state_folder_and_its_subfolders_may_be_links(tmp_path):
    for name in ("home", "big"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "indexes").symlink_to(tmp_path / "big")
    (tmp_path / "link").symlink_to("home")
    home = Home(tmp_path / "link")
    assert home.open() is None and home.chains.is_dir()
    assert readable_by_others(tmp_path / "home") == readable_by_others(tmp_path / "big") == []


@pytest.mark.parametrize(("mode", "place"), [(0o777, ""), (0o1777, ""), (0o777, "indexes")])
def test_create_app_refuses_a_state_folder_that_everybody_can_write(tmp_path, mode, place):
    folder = tmp_path / "home" / place
    folder.mkdir(parents=True)
    folder.chmod(mode)
    with pytest.raises(ValueError, match="every user of this machine can write"):
        create_app(read_settings(home=tmp_path / "home"))
    assert not (tmp_path / "home" / "chains").exists()


def test_a_state_folder_of_another_user_is_refused_unless_it_is_roots(tmp_path, monkeypatch):
    """As root the folder is given away. As anybody else another user id is pretended."""
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        Home(tmp_path).open()  # the root of a volume is root's
        monkeypatch.undo()
        os.chown(tmp_path, 12345, -1)
    else:
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(ValueError, match="belongs to user"):
        Home(tmp_path).open()


def test_group_write_permission_is_warned_of_until_it_is_removed_and_a_sticky_parent_is_accepted(tmp_path):
    tmp_path.chmod(0o1777)
    assert Home(tmp_path / "lathe").open() is None
    tmp_path.chmod(0o2770)
    home = Home(tmp_path)
    assert "the group" in home.list_warnings()[0]
    assert home.open() is None and home.list_warnings() == []


def test_health_and_metrics_report_a_full_disk_until_there_is_space(lathe):
    monitor, said = lathe.services.state_monitor, lambda: lathe.client.get("/health").json()["warnings"]
    assert not [warning for warning in said() if "state folder" in warning]
    with full_disk():
        monitor.check()
        metrics = lathe.client.get("/metrics").text  # here, because other apps of the tests report there too
    try:
        (warning,) = [warning for warning in said() if "state folder cannot be written" in warning]
        assert str(lathe.settings.home) not in warning
        assert lathe.client.get("/health/ready").status_code == 200
        assert "lathe_state_writable 0.0" in metrics
    finally:
        monitor.check()
    assert not [warning for warning in said() if "state folder" in warning]
    assert "lathe_state_writable 1.0" in lathe.client.get("/metrics").text
    assert not list(lathe.settings.home.glob(".probe*"))


@pytest.mark.parametrize("content", ["{", '{"enc": {"x": "%s"}}' % ("n" * 100_000)])
def test_health_reports_a_damaged_size_routes_file_until_it_is_repaired(lathe, content):
    monitor, size_routes = lathe.services.state_monitor, lathe.services.registry.size_routes
    before = size_routes.path.read_bytes()
    try:
        size_routes.path.write_text(content)
        monitor.check()
        (said,) = lathe.client.get("/health").json()["warnings"]
        assert said.startswith("size_routes.json cannot be read") and len(said) < 3000
        assert lathe.client.post("/embed", json={"inputs": "a", "dimensions": 128}).json()["error"]["message"] in said
    finally:
        replace_synced(size_routes.path, before)
    monitor.check()
    assert lathe.client.get("/health").json()["warnings"] == []


@pytest.fixture
def data(tmp_path):
    """Build a data root that is a link, beside a secret file."""
    (tmp_path / "secret.txt").write_text("a secret\n")
    (tmp_path / "disk" / "sub").mkdir(parents=True)
    (tmp_path / "disk" / "sub" / "some.txt").write_text("a text\n")
    (tmp_path / "data").symlink_to("disk")
    return tmp_path / "data"


def texts(written):
    """Read all texts of a source."""
    return [text for batch in open_source(written).batches() for text in batch.values]


def test_a_data_root_may_be_a_link_and_names_may_hold_the_mark_of_a_field(data):
    for place in ("sub", "sub/some.txt", "", f"{data}/sub"):
        assert texts(resolve_allowed_path(place, data)) == ["a text"]
    for name in ("a#1.jsonl", "#.jsonl", "of#two#marks.jsonl"):
        (data / name).write_text('{"text": "a text", "body": "its body"}\n')
        assert texts(resolve_allowed_path(name, data)) == ["a text"]
        assert texts(resolve_allowed_path(f"{name}#body", data)) == ["its body"]


def test_temporary_folders_of_killed_processes_are_deleted_at_the_start_once_they_are_old(tmp_path):
    """A `kill -9` leaves them while a version is published, an index created or a version deleted."""
    home = Home(tmp_path)
    old = [home.indexes / ".docs.0a1b", home.chains / "mine" / ".2.0a1b", home.trained / "ours" / ".1.0a1b"]
    others = [home.chains / "mine" / ".3.0a1b", home.chains / "mine" / "1", home.indexes / "docs"]
    for folder in (*old, *others):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x")
    (home.chains / "mine" / ".lock").write_bytes(b"")
    for folder in (*old, *others[1:]):
        os.utime(folder, (0, 0))
    home.delete_leftovers()
    assert not any(folder.exists() for folder in old) and all((folder / "file").exists() for folder in others)
    assert (home.chains / "mine" / ".lock").exists()


@pytest.mark.parametrize("format", ["npy", "txt"])
def test_a_file_replaced_by_a_link_after_the_check_is_not_read(data, format):
    file = data / "sub" / f"later.{format}"
    file.write_bytes(b"")
    written = resolve_allowed_path(f"sub/later.{format}", data)
    file.unlink()
    file.symlink_to(data.parent / "secret.txt")
    with pytest.raises(SourceError, match="out of the folder") as refused:
        texts(written)
    assert str(data) not in str(refused.value)


def test_starter_chains_may_be_links_and_chains_of_a_state_folder_may_not(tmp_path):
    for file in (STARTERS / "compact").rglob("*"):
        if file.is_file():
            link = tmp_path / "site-packages" / file.relative_to(STARTERS)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
    linked = tmp_path / "site-packages"
    installed = Registry(tmp_path / "chains")
    assert installed.copy_chain("compact", Registry(linked, shipped=True), read_serialized_artifact)
    assert installed.load("compact").ref == "compact@1"
    assert not [path for path in installed.root.rglob("*") if path.is_symlink()]
    manifest = installed.root / "compact" / "1" / "manifest.json"
    manifest.unlink()
    manifest.symlink_to(STARTERS / "compact" / "1" / "manifest.json")
    (described,) = installed.describe("compact")["versions"]
    assert described["state"] == "corrupt" and "leads out of the folder" in described["error"]
    assert str(tmp_path) not in described["error"]
