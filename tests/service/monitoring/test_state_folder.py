"""Who may read and write the state folder, and what is said when it cannot be written."""

import os
import resource
import stat
from contextlib import contextmanager

import pytest

from service.app import create_app
from service.chains.registry import Registry
from service.chains.starters import STARTERS
from service.errors import ForbiddenError, UnknownNameError
from service.home import Home
from service.jobs.sources import resolve_allowed_path
from service.settings import read_settings
from training.errors import SourceError
from training.sources.source import open_source
from transforms.files import replace_synced


def readable_by_others(folder):
    found = [folder, *folder.rglob("*")]
    return [path for path in found if not path.is_symlink() and path.stat().st_mode & 0o077]


@contextmanager
def full_disk():
    """No file may grow past nothing, which for a writer is as a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_server_leaves_nothing_in_its_folder_that_others_can_read(lathe):
    assert (lathe.settings.home / "chains" / "compact" / "1" / "manifest.json").is_file()
    assert readable_by_others(lathe.settings.home) == []


def test_a_folder_of_earlier_days_loses_what_others_may_do_but_links_are_left_alone(tmp_path):
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


def test_the_folder_and_those_in_it_may_be_links_to_other_disks(tmp_path):
    for name in ("home", "big"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "indexes").symlink_to(tmp_path / "big")
    (tmp_path / "link").symlink_to("home")
    home = Home(tmp_path / "link")
    assert home.open() is None and home.chains.is_dir()
    assert readable_by_others(tmp_path / "home") == readable_by_others(tmp_path / "big") == []


@pytest.mark.parametrize("mode", [0o777, 0o1777], ids=["open to all", "sticky, as /tmp"])
@pytest.mark.parametrize("place", ["", "indexes"])
def test_no_server_starts_where_everybody_can_put_something(tmp_path, mode, place):
    folder = tmp_path / "home" / place
    folder.mkdir(parents=True)
    folder.chmod(mode)
    with pytest.raises(ValueError, match="every user of this machine can write"):
        create_app(read_settings(home=tmp_path / "home"))
    assert not (tmp_path / "home" / "chains").exists()


def test_a_folder_of_ones_own_in_one_that_is_sticky_is_safe(tmp_path):
    tmp_path.chmod(0o1777)
    assert Home(tmp_path / "lathe").open() is None


def test_another_users_folder_is_refused_and_roots_is_not(tmp_path, monkeypatch):
    """As root the folder is given away; anybody else pretends to be another."""
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        Home(tmp_path).require_safe()  # the root of a volume is root's
        monkeypatch.undo()
        os.chown(tmp_path, 12345, -1)
    else:
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(ValueError, match="belongs to user"):
        Home(tmp_path).open()


def test_a_group_that_can_write_is_warned_of_where_that_cannot_be_changed(tmp_path):
    tmp_path.chmod(0o2770)
    home = Home(tmp_path)
    assert "the group" in home.list_warnings()[0]
    assert home.open() is None and home.list_warnings() == []


def test_a_full_disk_is_noticed_by_health_and_the_metrics(lathe):
    monitor, said = lathe.services.state_monitor, lambda: lathe.client.get("/health").json()["warnings"]
    assert not [warning for warning in said() if "state folder" in warning]
    with full_disk():
        monitor.check()
    try:
        (warning,) = [warning for warning in said() if "state folder cannot be written" in warning]
        assert str(lathe.settings.home) not in warning
        assert lathe.client.get("/health/ready").status_code == 200
        assert "lathe_state_writable 0.0" in lathe.client.get("/metrics").text
    finally:
        monitor.check()
    assert not [warning for warning in said() if "state folder" in warning]
    assert "lathe_state_writable 1.0" in lathe.client.get("/metrics").text
    assert not list(lathe.settings.home.glob(".probe*"))


@pytest.mark.parametrize("content", ["{", "[1]", '{"enc": {"x": "%s"}}' % ("n" * 100_000)])
def test_damaged_places_are_told_by_health_until_they_are_put_right(lathe, content):
    monitor, size_routes = lathe.services.state_monitor, lathe.services.size_routes
    before = size_routes.path.read_bytes()
    try:
        size_routes.path.write_text(content)
        monitor.check()
        (said,) = lathe.client.get("/health").json()["warnings"]
        assert said.startswith("places.json cannot be read") and len(said) < 3000
        assert lathe.client.post("/embed", json={"inputs": "a", "dimensions": 128}).json()["error"]["message"] in said
    finally:
        replace_synced(size_routes.path, before)
    monitor.check()
    assert lathe.client.get("/health").json()["warnings"] == []


def test_a_server_starts_with_damaged_places_and_says_so(start_app, tmp_path):
    (tmp_path / "places.json").write_text("{")
    with start_app(home=tmp_path) as app:
        (said,) = app.client.get("/health").json()["warnings"]
        assert "places.json cannot be read" in said
        assert app.client.post("/embed", json={"inputs": "a", "chain": "compact"}).status_code == 200


@pytest.fixture
def data(tmp_path):
    """A data root that is a link, beside a secret."""
    (tmp_path / "secret.txt").write_text("a secret\n")
    (tmp_path / "disk" / "sub").mkdir(parents=True)
    (tmp_path / "disk" / "sub" / "some.txt").write_text("a text\n")
    (tmp_path / "data").symlink_to("disk")
    return tmp_path / "data"


def texts(written):
    return [text for batch in open_source(written).batches() for text in batch.values]


@pytest.mark.parametrize("place", ["sub", "sub/some.txt", "", "{root}/sub"])
def test_a_data_root_that_is_a_link_is_read(data, place):
    assert texts(resolve_allowed_path(place.format(root=data), data)) == ["a text"]


def test_a_folder_is_refused_for_a_link_in_it_that_leads_out(data):
    (data / "sub" / "link.txt").symlink_to(data.parent / "secret.txt")
    for place in ("sub", "sub/link.txt", "../secret.txt", str(data.parent / "secret.txt")):
        with pytest.raises(ForbiddenError, match="outside the server's data folder"):
            resolve_allowed_path(place, data)


@pytest.mark.parametrize("format", ["npy", "txt", "hdf5", "faiss"])
def test_a_file_that_becomes_a_link_after_it_was_allowed_is_not_read(data, format):
    file = data / "sub" / f"later.{format}"
    file.write_bytes(b"")
    written = resolve_allowed_path(f"sub/later.{format}", data)
    file.unlink()
    file.symlink_to(data.parent / "secret.txt")
    with pytest.raises(SourceError, match="out of the folder") as refused:
        texts(written)
    assert str(data) not in str(refused.value)


def test_a_loop_of_links_is_no_source(data):
    (data / "loop.txt").symlink_to("loop.txt")
    with pytest.raises(UnknownNameError):
        resolve_allowed_path("loop.txt", data)


def test_starters_may_be_links_into_a_package_cache_and_chains_of_a_state_folder_may_not(tmp_path):
    for file in (STARTERS / "compact").rglob("*"):
        if file.is_file():
            link = tmp_path / "site-packages" / file.relative_to(STARTERS)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
    linked = tmp_path / "site-packages"
    installed = Registry(tmp_path / "chains")
    assert installed.install("compact", Registry(linked, shipped=True))
    assert installed.load("compact").ref == "compact@1"
    assert not [path for path in installed.root.rglob("*") if path.is_symlink()]
    manifest = installed.root / "compact" / "1" / "manifest.json"
    manifest.unlink()
    manifest.symlink_to(STARTERS / "compact" / "1" / "manifest.json")
    (described,) = installed.describe("compact")["versions"]
    assert described["state"] == "corrupt" and "leads out of the folder" in described["error"]
    assert str(tmp_path) not in described["error"]
