"""Indexes that cannot be opened, records that are damaged inside, and links in place of files."""

import os
import shutil

import numpy as np
import pytest

from lathe.service.index.embedded.damage import find_damage
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.record_file import PAGE_BYTES
from lathe.service.index.query import Query
from lathe.service.index.spec import IndexSpec
from tests.helpers import eventually
from tests.service.index.opening import opened, serving

SPEC = IndexSpec(None, None, 64, "raw", "none", 64, "raw")
ITEMS = 600


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Build a closed index of 600 items and return its folder."""
    folder = tmp_path_factory.mktemp("whole") / "x"
    folder.mkdir()
    IndexRecord.create(folder / "record.db", SPEC, None).close()
    vectors = np.random.default_rng(0).normal(size=(ITEMS, 64)).astype(np.float32)
    with opened(folder) as index:
        index.upsert([str(n) for n in range(ITEMS)], vectors, [None] * ITEMS, None).result()
    return folder


@pytest.fixture
def root(tmp_path, whole):
    shutil.copytree(whole, tmp_path / "indexes" / "good")
    return tmp_path / "indexes"


def spoil(path, at, payload):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(payload)


def spoil_inside(path):
    """Overwrite pages in the middle of a file with random bytes."""
    spoil(path, path.stat().st_size // 2 // PAGE_BYTES * PAGE_BYTES, os.urandom(3 * PAGE_BYTES))


def test_health_and_metrics_report_indexes_that_cannot_be_opened_and_why(start_app, tmp_path, whole):
    root = tmp_path / "home" / "indexes"
    for name in ("corrupt", "truncated", "newer", "linked", "good", "empty"):
        shutil.copytree(whole, root / name)
    spoil(root / "corrupt" / "record.db", 0, os.urandom(PAGE_BYTES))
    os.truncate(root / "truncated" / "record.db", 3 * PAGE_BYTES)
    spoil(root / "newer" / "record.db", 60, (99).to_bytes(4, "big"))  # SQLite's user_version
    (root / "linked" / "record.db").rename(tmp_path / "elsewhere.db")
    (root / "linked" / "record.db").symlink_to(tmp_path / "elsewhere.db")
    (root / "empty" / "record.db").unlink()
    with start_app(indexes_only=True, home=tmp_path / "home") as app:
        warnings = app.client.get("/health").json()["warnings"]
        said = {warning.split()[2]: warning for warning in warnings if warning.startswith("the index ")}
        metrics = app.client.get("/metrics").text
    assert set(said) == {"corrupt", "truncated", "newer", "linked", "empty"}
    assert "not a database" in said["corrupt"] and "malformed" in said["truncated"]
    assert "schema 99" in said["newer"] and "is a link" in said["linked"] and "missing" in said["empty"]
    assert not any(str(tmp_path) in warning for warning in said.values())
    assert 'lathe_indexes{state="unavailable"} 5.0' in metrics and 'lathe_indexes{state="open"} 1.0' in metrics


def test_a_deleted_index_is_removed_from_the_warnings(root):
    spoil(root / "good" / "record.db", 0, os.urandom(PAGE_BYTES))
    with serving(root) as indexes:
        indexes.open_all()
        assert len(indexes.warnings()) == 1
        indexes.delete("good")
        assert indexes.warnings() == []


def test_damage_inside_a_record_is_reported_while_the_index_serves(root):
    path = root / "good" / "record.db"
    assert find_damage(path) is None
    spoil_inside(path)
    with serving(root) as indexes:
        indexes.checks.queue("good", path)
        indexes.checks.start()
        eventually(indexes.warnings)
        assert "the index good is damaged" in indexes.warnings()[0]
        assert indexes.count_states()["damaged"] == 1


@pytest.mark.parametrize("planted", ["owner.json", "graph-1/.snapshot.json", "graph-1/labels.i64"])
def test_symbolic_links_inside_an_index_folder_are_never_written_through(root, tmp_path, planted):
    victim, link = tmp_path / "victim", root / "good" / planted
    victim.write_text("mine")
    link.unlink(missing_ok=True)
    link.symlink_to(victim)
    with serving(root) as indexes:
        index = indexes.get("good")
        vectors = np.ones((3, 64), np.float32)
        index.upsert(["a", "b", "c"], vectors, [None] * 3, None).result()
        assert index.get_serving().search(Query(vectors[:1], 1))[0][0]["id"] in {"a", "b", "c"}
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("side", ["", "-wal"])
def test_a_record_file_that_is_a_symbolic_link_is_refused(root, tmp_path, side):
    path = root / "good" / f"record.db{side}"
    if path.exists():
        path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    if side:
        (tmp_path / "moved").write_bytes(b"")
    with serving(root) as indexes, pytest.raises(Exception, match="is a link"):
        indexes.get("good")
