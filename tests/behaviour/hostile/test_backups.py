"""Backups from elsewhere with valid checksums: what no index of ours holds is refused by name, and leaves nothing."""

import hashlib
import json
import os
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load, save

from lathe.service.errors import ServiceError, convert_error
from lathe.service.index.embedded.backup import back_up_index, restore_index
from lathe.service.index.query import Query, parse_filter
from lathe.service.index.reducer import Reducer, read_artifact_files
from lathe.service.index.spec import IndexSpec
from lathe.transforms.artifact.folder import manifest_digest
from lathe.transforms.beneath import OutsideError
from lathe.transforms.errors import ArtifactError
from tests.service.index.opening import serving

WIDTH = 16
ITEMS = 40
RAW = IndexSpec(None, None, WIDTH, "raw", "none", WIDTH, "raw")
KINDS = {
    "raw": (RAW, None),
    "reduced": (replace(RAW, chain="mine@1", dimensions=8, space_id="small"), "r2,pca:8"),
    "codes": (replace(RAW, chain="mine@1", space_id="coded", originals="none"), "r2,codes:8"),
}


@pytest.fixture(scope="session")
def backups(tmp_path_factory, artifacts, rows):
    """Return a function that backs up an index of 40 items, some replaced and deleted, once for each kind."""
    made = {}

    def build(kind):
        if kind not in made:
            root = tmp_path_factory.mktemp(kind)
            spec, steps = KINDS[kind]
            artifact = None if steps is None else read_artifact_files(artifacts(steps))
            ids, metadata = [f"id {n}" for n in range(ITEMS)], [{"n": n, "text": "x" * n} for n in range(ITEMS)]
            with serving(root / "indexes") as indexes:
                index = indexes.create("docs", spec, artifact)
                index.upsert(ids, rows[:ITEMS], metadata, None).result()
                index.upsert(ids[:3], rows[ITEMS : ITEMS + 3], metadata[:3], None).result()
                index.delete(ids[5:7]).result()
            back_up_index(root / "indexes" / "docs", root / "backup")
            made[kind] = root / "backup"
        return made[kind]

    return build


@pytest.fixture
def forge(tmp_path, backups):
    """Return a function that copies a backup, changes its record by SQL or a function, and seals it again."""

    def build(kind, change):
        folder = tmp_path / "backup"
        folder.mkdir()
        for path in backups(kind).iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        with closing(sqlite3.connect(folder / "record.db", isolation_level=None)) as db:
            if callable(change):
                change(db)
            else:
                db.executescript(change)
        seal(folder)
        return folder

    return build


def seal(folder, **changes):
    """Give a backup's manifest the checksum of its record, and other changes."""
    manifest = json.loads((folder / "backup.json").read_text())
    digest = hashlib.sha256((folder / "record.db").read_bytes()).hexdigest()
    (folder / "backup.json").write_text(json.dumps(manifest | {"sha256": digest} | changes))


def rewrite_schema(name, old, new):
    """Return a change of the SQL by which SQLite remembers a table, which needs no access to its rows."""

    def change(db):
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = ?", (old, new, name))
        assert db.execute("SELECT changes()").fetchone() == (1,)

    return change


def set_meta(key, text):
    return lambda db: db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, text))


def set_vector(value):
    return lambda db: db.execute("UPDATE vectors_1 SET vector = ? WHERE label = 10", (value,))


def set_item(column, value):
    return lambda db: db.execute(f"UPDATE items SET {column} = ? WHERE label = 10", (value,))


def set_label(value):
    """Return a change of the label of one item and its vector."""
    return "".join(f"UPDATE {table} SET label = {value} WHERE label = 10;" for table in ("items", "vectors_1"))


def change_spec(**changes):
    """Return a change of the settings."""

    def change(db):
        (spec,) = db.execute("SELECT value FROM meta WHERE key = 'spec'").fetchone()
        set_meta("spec", json.dumps(json.loads(spec) | changes))(db)

    return change


def change_chain(change_tensors):
    """Return a change of the tensors of the stored chain, which keeps its digests valid."""

    def change(db):
        manifest, payload = db.execute("SELECT manifest, tensors FROM chains").fetchone()
        tensors, manifest = load(payload), json.loads(manifest)
        change_tensors(tensors)
        payload = save(tensors)
        manifest["tensors_sha256"] = hashlib.sha256(payload).hexdigest()
        manifest["manifest_sha256"] = manifest_digest(manifest)
        db.execute("UPDATE chains SET manifest = ?, tensors = ?", (json.dumps(manifest).encode(), payload))

    return change


DEEP = "[" * 100_000
HOSTILE_RECORDS = {
    "a check that takes gigabytes": (
        "raw",
        rewrite_schema("items", "metadata BLOB", "metadata BLOB CHECK (length(hex(zeroblob(1000000000))) > 0)"),
    ),
    "another table": ("raw", "CREATE TABLE more (a)"),
    "many tables": ("raw", ";".join(f"CREATE TABLE t{n} (a)" for n in range(101))),
    "a trigger": ("raw", "CREATE TRIGGER more AFTER INSERT ON items BEGIN DELETE FROM items; END"),
    "a table too few": ("raw", "DROP TABLE tombstones"),
    "no table of vectors": ("raw", "DROP TABLE vectors_1"),
    "a column without NOT NULL": ("raw", rewrite_schema("vectors_1", " NOT NULL", "")),
    "an index that lacks ids": ("raw", lambda db: hide_index_entry(db)),
    "the id of another application": ("raw", "PRAGMA application_id = 1"),
    "no settings": ("raw", "DELETE FROM meta WHERE key = 'spec'"),
    "deep settings": ("raw", set_meta("spec", DEEP)),
    "other dimensions": ("reduced", change_spec(dimensions=9)),
    "another dtype": ("raw", change_spec(originals="float16")),
    "codes of no chain": ("raw", change_spec(originals="none")),
    "a table of vectors that is missing": ("raw", change_spec(vectors=7)),
    "a chain that is missing": ("raw", change_spec(chain="mine@1")),
    "sequence 2^53 + 1": ("raw", set_meta("sequence", str(2**53 + 1))),
    "no sequence": ("raw", "DELETE FROM meta WHERE key = 'sequence'"),
    "a last label below the labels": ("raw", set_meta("last_label", "3")),
    "a label of 0": ("raw", set_label(0)),
    "a short vector": ("raw", set_vector(bytes(8))),
    "a vector with NaN": ("raw", set_vector(np.array([1, np.nan] * 8, "<f4").tobytes())),
    "a vector too few": ("raw", "DELETE FROM vectors_1 WHERE label = 10"),
    "a short code": ("codes", set_vector(bytes(7))),
    "an id with a line feed": ("raw", set_item("id", "a\nb")),
    "an id that is no UTF-8": ("raw", "UPDATE items SET id = CAST(x'ff80' AS TEXT) WHERE label = 10"),
    "deep metadata": ("raw", set_item("metadata", DEEP.encode())),
    "metadata of a megabyte": ("raw", set_item("metadata", b'{"a": "%s"}' % (b"x" * 1_000_000))),
    "a vector of 20 MB": ("raw", "UPDATE vectors_1 SET vector = zeroblob(20000000) WHERE label = 10"),
    "a manifest of 20 MB": ("reduced", "UPDATE chains SET manifest = zeroblob(20000000)"),
    "an encoder with a name of 5,000 characters": ("raw", change_spec(encoder="x" * 5_000)),
    "metadata nested 20 deep": ("raw", set_item("metadata", b'{"a":' * 20 + b"1" + b"}" * 20)),
    "a tombstone of an item": ("raw", "INSERT INTO tombstones VALUES (10, 1)"),
    "a tombstone of a later write": ("raw", f"UPDATE tombstones SET sequence = {2**62}"),
    "two chains": ("reduced", "INSERT INTO chains SELECT 'other@1', manifest, tensors FROM chains"),
    "a chain that is a text": ("reduced", "UPDATE chains SET manifest = 'x', tensors = 'y'"),
    "a chain of bits that overlap": ("codes", change_chain(lambda tensors: tensors["1.layout"].fill_(1))),
}  # fmt: skip


ODD_SETTINGS = [
    {"generation": "x/../../../evil"}, {"generation": ""}, {"generation": 1}, {"vectors": "1 WHERE 0 --"},
    {"vectors": True}, {"vectors": 0}, {"width": 10**12}, {"width": "4"}, {"dimensions": 0}, {"originals": "O"},
    {"metric": ["cosine"]}, {"m": 10**9}, {"ef_construction": -1}, {"chain": None}, {"unknown": 1},
]  # fmt: skip
HOSTILE_RECORDS |= {f"the settings {changes}": ("raw", change_spec(**changes)) for changes in ODD_SETTINGS}


def hide_index_entry(db):
    """Let the index of ids be that of another table, so that no id is found."""
    db.execute("PRAGMA writable_schema = ON")
    pages = dict(db.execute("SELECT name, rootpage FROM sqlite_schema"))
    db.execute(
        "UPDATE sqlite_schema SET rootpage = ? WHERE name = 'sqlite_autoindex_items_1'",
        (pages["sqlite_autoindex_chains_1"],),
    )


@pytest.mark.parametrize("what", HOSTILE_RECORDS)
def test_a_backup_whose_record_is_not_one_of_ours_is_refused_by_name(what, forge, tmp_path, within_limits):
    folder = forge(*HOSTILE_RECORDS[what])
    with within_limits(), pytest.raises((ServiceError, ArtifactError)) as refused:
        restore_index(folder, tmp_path / "indexes")
    answered = convert_error(refused.value)
    assert answered.status == 503 and len(answered.message) < 600
    assert [path.name for path in (tmp_path / "indexes").iterdir()] == []


HOSTILE_MANIFESTS = {
    "deep": lambda path: path.write_text(DEEP),
    "a list": lambda path: path.write_text("[1]"),
    "10 MB": lambda path: path.write_text(json.dumps({"x": "y" * 10_000_000})),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a link that leads out": lambda path: (
        path.rename(path.parent.parent / "out.json"),
        path.symlink_to(path.parent.parent / "out.json"),
    ),
    "schema 2": lambda path: seal(path.parent, schema=2),
    "schema 0": lambda path: seal(path.parent, schema=0),
    "a checksum that is a list": lambda path: seal(path.parent, sha256=["x"]),
    "a name that leads out": lambda path: seal(path.parent, index="../../evil"),
}


@pytest.mark.parametrize("what", HOSTILE_MANIFESTS)
def test_a_backup_with_an_odd_manifest_is_refused_by_name(what, forge, tmp_path, within_limits):
    folder = forge("raw", "")
    HOSTILE_MANIFESTS[what](folder / "backup.json")
    with within_limits(), pytest.raises(ServiceError) as refused:
        restore_index(folder, tmp_path / "indexes")
    assert refused.value.status in (400, 503)
    assert not (tmp_path / "indexes").exists() and not (tmp_path / "evil").exists()


@pytest.mark.parametrize("what", ["a pipe", "a link that leads out"])
def test_a_backup_whose_record_is_no_plain_file_is_refused(what, forge, tmp_path, within_limits):
    folder = forge("raw", "")
    HOSTILE_MANIFESTS[what](folder / "record.db")
    with within_limits(), pytest.raises((OSError, OutsideError)):
        restore_index(folder, tmp_path / "indexes")
    assert [path.name for path in (tmp_path / "indexes").iterdir()] == []


@pytest.mark.parametrize("size", [0, 30_000])
def test_a_backup_whose_record_is_cut_off_is_refused(size, forge, tmp_path, within_limits):
    folder = forge("raw", "")
    os.truncate(folder / "record.db", size)
    seal(folder)
    with within_limits(), pytest.raises(ServiceError):
        restore_index(folder, tmp_path / "indexes")
    assert [path.name for path in (tmp_path / "indexes").iterdir()] == []


def test_files_beside_the_record_of_a_backup_are_not_taken(forge, tmp_path):
    folder = forge("raw", "")
    for name in ("record.db-wal", "record.db-journal", "record.db-shm", "owner.json", "graph.1.faiss"):
        (folder / name).write_bytes(b"evil")
    (folder / "graph-1").mkdir()
    (folder / "graph-1" / "snapshot.json").write_text(DEEP)
    restore_index(folder, tmp_path / "indexes")
    assert [path.name for path in (tmp_path / "indexes" / "docs").iterdir()] == ["record.db"]


HARMLESS = {
    "as it is": "",
    "other pages": "PRAGMA journal_mode = DELETE; PRAGMA page_size = 512; VACUUM",
    "another count": lambda db: None,
    "notes of an import": set_meta("import:a", '{"rows": 5}'),
    "entries for filters that the metadata do not say": (
        "DELETE FROM fields WHERE name = 'n'; INSERT INTO fields VALUES (x'00ff', x'00ff', 10), ('n', 3, 10)"
    ),
    "the next table of vectors": "CREATE TABLE vectors_2 (label INTEGER PRIMARY KEY, vector BLOB NOT NULL)",
}


@pytest.mark.parametrize(
    ("what", "kind"), [*((what, "raw") for what in HARMLESS), ("as it is", "reduced"), ("as it is", "codes")]
)
def test_a_backup_of_ours_is_restored_and_serves(what, kind, forge, tmp_path, rows, within_limits):
    folder = forge(kind, HARMLESS[what])
    if what == "another count":
        seal(folder, count=10**9, spec="x", sequence=[])
    with within_limits():
        assert restore_index(folder, tmp_path / "indexes", "again")["count"] == ITEMS - 2
    with serving(tmp_path / "indexes") as indexes:
        index = indexes.get("again")
        found = index.get_serving().search(Query(rows[20:21], 1))
        assert found[0][0]["id"] == "id 20" and index.describe()["count"] == ITEMS - 2
        filtered = index.get_serving().search(Query(rows[20:21], 9, item_filter=parse_filter({"n": 3})))
        assert [hit["id"] for hit in filtered[0]] == ["id 3"]
        assert index.upsert(["new"], rows[:1], [{"a": 1}], None).result().sequence == 4
        assert index.get(["new", "id 9"], vectors=False)[1]["id"] == "id 9"


def test_an_index_copied_into_the_state_folder_with_a_check_is_not_opened(forge, tmp_path):
    """A folder that was copied there by hand passes no restoration."""
    folder = forge(*HOSTILE_RECORDS["a check that takes gigabytes"])
    (tmp_path / "indexes" / "docs").mkdir(parents=True)
    (folder / "record.db").rename(tmp_path / "indexes" / "docs" / "record.db")
    with serving(tmp_path / "indexes") as indexes, pytest.raises(ServiceError, match="'items'"):
        indexes.get("docs")


def test_the_reducer_of_an_index_refuses_a_chain_of_other_dimensions(artifacts):
    artifact = read_artifact_files(artifacts("r2,pca:8"))
    for changes in ({"width": 15}, {"dimensions": 9}):
        with pytest.raises(ArtifactError, match="maps 16 dimensions to any number up to 8"):
            Reducer(replace(KINDS["reduced"][0], **changes), artifact)
