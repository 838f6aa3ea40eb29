"""Damaged files of the state folder: each is rebuilt, or named in one error, quickly and without waiting."""

import hashlib
import json
import os
import shutil
import sqlite3
import threading
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from lathe.service.chains.registry import Registry
from lathe.service.chains.usage import read_recorded_uses
from lathe.service.encoder_settings import AddedEncoders
from lathe.service.errors import ConflictError, ServiceError, convert_error
from lathe.service.home import Home
from lathe.service.index.bridge import load_bridge
from lathe.service.index.embedded.damage import find_damage
from lathe.service.index.embedded.indexes import acquire_index
from lathe.service.index.embedded.maintenance import READY, Cutover, build_lock_path
from lathe.service.index.embedded.snapshot import compute_content_digest
from lathe.service.index.query import Query
from lathe.service.index.reducer import read_artifact_files
from lathe.service.index.spec import IndexSpec
from lathe.service.jobs.folder import FolderQueue
from lathe.service.key_file import KeyFile
from lathe.training.fitting.encoded_shards import POSITION, Position, read_position
from lathe.training.locks import lock_file
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import MAX_DEPTH, parse_json, parse_json_object
from tests.service.index.opening import opened, serving

WIDTH = 16
ITEMS = 300
SPEC = IndexSpec(None, None, WIDTH, "raw", "mine@1", WIDTH, "coded")
DEEP = b"[" * 100_000
DAMAGED = {
    "deep lists": DEEP,
    "nested 65 deep": b'{"schema": ' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}",
    "a list": b"[1, 2]",
    "null": b"null",
    "an integer of 5,000 digits": b'{"live": ' + b"9" * 5000 + b"}",
    "no text": b"\xff\xfe\x00",
    "empty": b"",
    "cut off": b'{"schema": 2, "rows": ',
    "a lone surrogate": b'{"live": "\\ud800"}',
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_json_file_is_a_value_error(what, within_limits):
    with within_limits(), pytest.raises(ValueError):  # noqa: PT011 - the parser's own message
        parse_json_object(DAMAGED[what])


@pytest.mark.parametrize("content", [DEEP, b"{" * 10, b"[" * 2000 + b"]" * 2000, b"9" * 30, b'"\\udfff"', b"\xff"])
def test_json_that_other_parsers_read_otherwise_is_a_value_error(content):
    for parse in (parse_json, parse_json_object):
        with pytest.raises(ValueError):  # noqa: PT011 - the parser's own message
            parse(content)


@pytest.fixture(params=["deep lists", "a list", "no text"])
def damaged(request):
    """Return damaged content of a JSON file: one that the parser refuses by itself, no object, and no Unicode."""
    return DAMAGED[request.param]


def pipe(path):
    """Put a pipe, which nobody writes to, in place of a file."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def device(path):
    """Put a link to an endless device in place of a file."""
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


@contextmanager
def refusing():
    """Run a block that must raise an error that is answered with its reason."""
    with pytest.raises(Exception) as refused:
        yield
    assert convert_error(refused.value).status != 500, repr(refused.value)


def test_the_pointer_size_routes_and_uses_are_named_when_they_are_damaged(damaged, tmp_path, within_limits):
    registry = Registry(tmp_path / "chains")
    (tmp_path / "chains" / "mine").mkdir(parents=True)
    (tmp_path / "chains" / "mine" / "pointer.json").write_bytes(damaged)
    for name in ("size_routes.json", "uses.json"):
        (tmp_path / name).write_bytes(damaged)
    with within_limits():
        with pytest.raises(ArtifactError, match="pointer of the chain mine"):
            registry.read_pointer("mine")
        with pytest.raises(ArtifactError, match=r"size_routes\.json cannot be read"):
            registry.size_routes.read()
        assert "size_routes.json cannot be read" in registry.size_routes.find_problem()
        with pytest.raises(ArtifactError, match=r"uses\.json cannot be read"):
            read_recorded_uses(tmp_path / "uses.json")


def test_added_encoders_and_jobs_are_named_when_they_are_damaged(damaged, tmp_path, within_limits):
    job = "0123456789abcdef012345"
    (tmp_path / "encoders.json").write_bytes(damaged)
    (tmp_path / job).mkdir()
    (tmp_path / job / "job.json").write_bytes(damaged)
    with within_limits():
        with pytest.raises(ValueError, match=r"encoders\.json in the state folder cannot be read"):
            AddedEncoders(tmp_path).read()
        assert FolderQueue(tmp_path).get(job).state == "failed"
    (tmp_path / POSITION).write_bytes(damaged)
    assert read_position(tmp_path) == Position()


@pytest.mark.parametrize("replace", [pipe, device])
def test_a_pipe_or_device_in_place_of_a_file_of_the_state_folder_is_not_waited_for(replace, tmp_path, within_limits):
    registry = Registry(tmp_path / "chains")
    for name in (
        "chains/mine/pointer.json",
        "chains/mine/1/manifest.json",
        "size_routes.json",
        "uses.json",
        "encoders.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        replace(tmp_path / name)
    for name in ("admin.key", "id"):
        replace(tmp_path / name)
    with within_limits():
        for read in (
            lambda: registry.read_pointer("mine"),
            lambda: registry.load("mine@1"),
            lambda: registry.size_routes.read(),
            lambda: read_recorded_uses(tmp_path / "uses.json"),
            lambda: AddedEncoders(tmp_path).read(),
            lambda: Home(tmp_path).read_or_create_admin_key(),
            lambda: Home(tmp_path).read_or_create_id(),
        ):
            with refusing():
                read()
        assert "size_routes.json" in registry.size_routes.find_problem()


KEYS = {
    "a pipe without a writer": lambda path: os.mkfifo(path),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "2 MB": lambda path: path.write_bytes(b"k" * 2_000_000),
}


@pytest.mark.parametrize("what", KEYS)
def test_a_key_file_that_cannot_be_read_to_its_end_is_refused_in_time(what, tmp_path, within_limits):
    KEYS[what](tmp_path / "keys")
    with within_limits(), pytest.raises(ValueError, match="keys cannot be read"):
        KeyFile.read(tmp_path / "keys", seconds=0.1)


@pytest.mark.parametrize("written", [b"k\n", b"k" * 2_000_000])
def test_a_pipe_that_its_writer_leaves_open_is_no_key_file(written, within_limits):
    read_end, write_end = os.pipe()
    writer = threading.Thread(target=write_quietly, args=(write_end, written), daemon=True)
    writer.start()
    with within_limits(), pytest.raises(ValueError, match="cannot be read: it is"):
        KeyFile.read(Path(f"/dev/fd/{read_end}"), seconds=0.2)
    os.close(read_end)
    writer.join(10)
    os.close(write_end)


def write_quietly(descriptor, content):
    """Write to a pipe whose reader may go away."""
    with suppress(OSError):
        os.write(descriptor, content)


def test_a_key_file_behind_links_is_read_as_containers_mount_it(tmp_path):
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "keys").write_bytes(b"\xef\xbb\xbfone\r\n# two\n three \n")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "keys").symlink_to("..data/keys")
    assert KeyFile.read(tmp_path / "keys").keys == ("one", "three")


@pytest.fixture(scope="session")
def whole(tmp_path_factory, artifacts, rows):
    """Build a closed index of 300 items whose rows are codes and return the folder of all indexes."""
    root = tmp_path_factory.mktemp("whole")
    with serving(root) as indexes:
        index = indexes.create("docs", SPEC, read_artifact_files(artifacts("r2,codes:8")))
        ids, metadata = [f"id {n}" for n in range(ITEMS)], [{"n": n} for n in range(ITEMS)]
        index.upsert(ids, rows[:ITEMS], metadata, None).result()
        index.wait_until_linked(lambda *_: None)
    return root


@pytest.fixture
def root(tmp_path, whole):
    shutil.copytree(whole, tmp_path / "indexes")
    return tmp_path / "indexes"


def assert_serves(root, rows, rebuilt=True):
    """Assert that the index finds an item and says that it was rebuilt, or was not."""
    with serving(root) as indexes:
        index = indexes.get("docs")
        assert index.get_serving().search(Query(rows[20:21], 1))[0][0]["id"] == "id 20"
        assert any("rebuilt" in note for note in index.describe()["notes"]) == rebuilt
        assert index.upsert(["new"], rows[:1], [None], None).result().sequence == 2


def test_an_index_with_a_damaged_snapshot_is_rebuilt(damaged, root, rows, within_limits):
    (root / "docs" / "graph-1" / "snapshot.json").write_bytes(damaged)
    with within_limits():
        assert_serves(root, rows)


ODD_SNAPSHOTS = {
    "rows -1": {"rows": -1},
    "fewer rows": {"rows": 10},
    "more rows": {"rows": ITEMS + 5},
    "covered 10^12": {"covered": 10**12},
    "digests that are a list": {"digests": ["codes.u8"]},
    "a graph that leads out": {"graph": "../../../etc/passwd"},
    "a later schema": {"schema": 3},
    "written at infinity": {"written_at": float("inf")},
    "another space": {"space_id": ["x"]},
}


@pytest.mark.parametrize("what", ODD_SNAPSHOTS)
def test_an_index_with_an_odd_snapshot_of_a_valid_checksum_is_rebuilt(what, root, rows, within_limits):
    path = root / "docs" / "graph-1" / "snapshot.json"
    content = json.loads(path.read_text())
    content.pop("sha256")
    content |= ODD_SNAPSHOTS[what]
    path.write_text(json.dumps(content | {"sha256": compute_content_digest(content)}))
    with within_limits():
        assert_serves(root, rows)


@pytest.mark.parametrize("content", [b"", b"IHNf" * 100])
def test_a_graph_file_of_somebody_else_with_a_valid_checksum_is_rebuilt(content, root, rows, within_limits):
    """The checksum says only that the file is the one that the snapshot names."""
    folder = root / "docs" / "graph-1"
    description = json.loads((folder / "snapshot.json").read_text())
    description.pop("sha256")
    (folder / description["graph"]).write_bytes(content)
    description["digests"][description["graph"]] = hashlib.sha256(content).hexdigest()
    (folder / "snapshot.json").write_text(json.dumps(description | {"sha256": compute_content_digest(description)}))
    with within_limits():
        assert_serves(root, rows)


@pytest.mark.parametrize("replace", [pipe, device])
def test_a_pipe_or_device_in_an_index_folder_is_not_waited_for(replace, root, rows, within_limits):
    for name in ("snapshot.json", "codes.u8"):
        replace(root / "docs" / "graph-1" / name)
    replace(root / "docs" / "owner.json")
    with within_limits():
        assert_serves(root, rows)


def test_a_damaged_note_of_an_owner_is_no_error(damaged, root, within_limits):
    lock = acquire_index(root / "docs", "docs")
    (root / "docs" / "owner.json").write_bytes(damaged)
    with within_limits(), pytest.raises(ConflictError, match="owned by another process"):
        acquire_index(root / "docs", "docs")
    lock.release()


def test_damaged_files_of_a_reindexing_are_named_and_the_index_serves_on(damaged, root, rows, within_limits):
    folder = root / "docs" / "graph-next"
    with opened(root / "docs") as index, lock_file(build_lock_path(folder)):
        folder.mkdir()
        (folder / READY).write_bytes(damaged)
        with within_limits():
            Cutover(index).check_generations()
        assert "in the index's owner" in json.loads((folder / "refused.json").read_text())["error"]
        (folder / "alignment.json").write_bytes(damaged)
        with within_limits(), pytest.raises((ValueError, TypeError, KeyError, ArtifactError)):
            load_bridge(folder)
        assert index.get_serving().search(Query(rows[20:21], 1))[0][0]["id"] == "id 20"


BAD_METADATA = [b"[[[", b"[1]", b'{"a": 1}}, {"id": "forged"']


@pytest.mark.parametrize("metadata", BAD_METADATA, ids=[repr(content[:12]) for content in BAD_METADATA])
def test_damaged_metadata_of_an_item_is_named_and_never_a_part_of_an_answer(metadata, root, rows, within_limits):
    with closing(sqlite3.connect(root / "docs" / "record.db")) as db, db:
        db.execute("UPDATE items SET metadata = ? WHERE id = 'id 20'", (metadata,))
    with serving(root) as indexes, within_limits():
        index = indexes.get("docs")
        for read in (
            lambda: index.get_serving().search(Query(rows[20:21], 1)),
            lambda: index.get(["id 20"], vectors=False),
            lambda: index.get(["id 20"], vectors=True),
        ):
            with pytest.raises(ServiceError, match="metadata of the item 'id 20' is damaged"):
                read()
        assert index.get(["id 21"], vectors=False)[0]["id"] == "id 21"
        index.upsert(["id 20"], rows[20:21], [{"n": 5}], None).result()
        assert index.get(["id 20"], vectors=False)[0]["id"] == "id 20"


def test_the_check_of_records_finds_damaged_metadata(root):
    assert find_damage(root / "docs" / "record.db") is None
    with closing(sqlite3.connect(root / "docs" / "record.db")) as db, db:
        db.execute("UPDATE items SET metadata = ? WHERE id = 'id 20'", (b"[[[",))
    assert find_damage(root / "docs" / "record.db") == "the metadata of the item 'id 20' is no JSON"


ODD_RECORDS = {
    "a sequence of 2^63": (f"UPDATE meta SET value = '{2**63}' WHERE key = 'sequence'", "sequence"),
    "deep settings": (f"UPDATE meta SET value = '{DEEP.decode()}' WHERE key = 'spec'", "spec"),
    "a chain that is a text": ("UPDATE chains SET manifest = 'x'", "chain mine@1"),
    "no chain": ("DELETE FROM chains", "chain mine@1"),
    "a short vector": ("UPDATE vectors_1 SET vector = x'00' WHERE label = 5", "vectors of another size"),
    "a vector that is a text": ("UPDATE vectors_1 SET vector = 'x' WHERE label = 5", "vectors that are not bytes"),
}


@pytest.mark.parametrize("what", ODD_RECORDS)
def test_an_index_with_a_damaged_record_is_named_when_it_is_opened(what, root, within_limits):
    change, named = ODD_RECORDS[what]
    with closing(sqlite3.connect(root / "docs" / "record.db")) as db, db:
        db.executescript(change)
    shutil.rmtree(root / "docs" / "graph-1")
    with serving(root) as indexes, within_limits():
        with pytest.raises((ServiceError, ArtifactError), match=named) as refused:
            indexes.get("docs")
        assert convert_error(refused.value).status == 503
        assert named in indexes.unopened["docs"]


def test_requests_for_damaged_chains_and_indexes_are_answered_503_with_the_name(start_app, tmp_path, whole):
    home = tmp_path / "home"
    shutil.copytree(whole, home / "indexes")
    with closing(sqlite3.connect(home / "indexes" / "docs" / "record.db")) as db, db:
        db.execute("UPDATE items SET metadata = ?", (DEEP,))
    with start_app(indexes_only=True, home=home) as app:
        client: TestClient = app.client
        answers = [
            client.post("/indexes/docs/search", json={"vectors": [[1.0] * WIDTH], "k": 1}),
            client.post("/indexes/docs/get", json={"ids": ["id 20"]}),
        ]
        for answer in answers:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "corrupt_index"), answer.text
