import json
import shutil
import sqlite3
import threading
from dataclasses import replace

import numpy as np
import pytest

from lathe.service.errors import BadValueError, TooLargeError, UnavailableError, convert_error
from lathe.service.index.embedded.filter_masks import FILTER_STEPS, FilterWork, find_matching_labels
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.record_file import MAX_PARAMETERS, SCHEMA_VERSION
from lathe.service.index.query import Query, parse_filter
from lathe.service.index.spec import IndexSpec
from tests.service.index.opening import opened

SPEC = IndexSpec(
    encoder=None, encoder_fingerprint=None, width=16, raw_space_id="r", chain="none", dimensions=16, space_id="r"
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "record.db"


@pytest.fixture
def record(path):
    record = IndexRecord.create(path, SPEC, None)
    yield record
    record.close()


def vectors(rows, seed=0):
    """Draw vectors `(rows, 16)`."""
    return np.random.default_rng(seed).normal(size=(rows, 16)).astype(np.float32)


def put(record, ids, metadata=None, seed=0, spec=SPEC, rows=None):
    """Insert items with random vectors into the record."""
    metadata = metadata or [None] * len(ids)
    payloads = [json.dumps(given).encode() if given else None for given in metadata]
    return record.upsert(ids, vectors(len(ids) if rows is None else rows, seed), metadata, payloads, spec)


def delete(record, ids):
    """Delete the items with these ids."""
    return record.delete(record.find_labels(ids))


def matching(record, condition, steps=FILTER_STEPS):
    """Return the labels that satisfy a condition, with a limit on the work."""
    return find_matching_labels(record, condition, 0, 10**6, FilterWork(steps))


def tables(record):
    """Return the content of all tables of the record."""
    names = ("meta", "items", "vectors_1", "fields", "tombstones", "chains")
    with record.reading() as db:
        return {name: sorted(db.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in names}


def fill(db):
    """Prevent the record from growing and return a function that allows it again."""
    db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
    return lambda: db.execute("PRAGMA max_page_count = 4294967294")


def test_sampled_labels_are_of_items_that_exist_however_often_they_were_replaced(record):
    for seed in range(33):
        put(record, [f"id {number}" for number in range(300)], seed=seed)
    labels = record.sample_labels(100)
    assert 60 <= len(labels) <= 100 and len(record.read_payloads(labels)) == len(labels)
    delete(record, [f"id {number}" for number in range(0, 300, 2)])  # every second label
    assert 30 <= len(record.sample_labels(75)) <= 75
    assert len(record.sample_labels(10_000)) == 150


def test_read_items_sees_one_state_of_an_item_that_is_replaced_meanwhile(record):
    def replace():
        for number in range(1, 60):
            put(record, ["a"], [{"n": number}], seed=number)

    put(record, ["a"], [{"n": 0}])
    writer = threading.Thread(target=replace)
    writer.start()
    while writer.is_alive():
        items, originals = record.read_items(["a"])
        label, metadata = items["a"]
        np.testing.assert_array_equal(originals[label], vectors(1, json.loads(metadata)["n"])[0])
    writer.join()


def test_find_matching_stops_a_condition_over_the_work_limit_and_serves_later_ones(record):
    ids = [str(number) for number in range(200)]
    put(record, ids, [{"x": list(range(100)), "y": 1}] * len(ids))
    costly = parse_filter({"x": {"gte": 0}})
    assert len(matching(record, costly)) == 20_000
    with pytest.raises(TooLargeError, match="too expensive") as refused:
        matching(record, costly, steps=100_000)
    assert refused.value.status == 413 and refused.value.code == "filter_too_expensive"
    assert record.idle.qsize() == 1  # the connection that was stopped serves the next reader
    assert len(matching(record, parse_filter({"y": 1}), steps=0)) == 200  # too little to be counted
    assert len(matching(record, costly)) == 20_000


def test_delete_leaves_tombstones_whose_deletion_removes_every_trace_and_labels_are_never_reused(record):
    put(record, ["a", "b"])
    assert delete(record, ["b", "no", "b"]).dead.tolist() == [2]
    assert delete(record, ["b"]).sequence == 3
    assert put(record, ["b"]).labels.tolist() == [3]
    assert record.read_tombstones().tolist() == [2]
    record.delete_tombstones(2)
    assert not len(record.read_tombstones())
    delete(record, ["a", "b"])
    record.delete_tombstones(10)
    before = tables(record)
    deep = {"x": [1, 2.5, None, True, {"y": "z" * 300}], "n": 2**64 - 1, "f": 0.1, "e": "", "-": -0.0}
    put(record, ["a"], [deep])
    put(record, ["a"], [deep])
    record.delete_tombstones(delete(record, ["a"]).sequence)
    after = tables(record)
    assert [after[name] for name in ("items", "vectors_1", "fields", "tombstones")] == [
        before[name] for name in ("items", "vectors_1", "fields", "tombstones")
    ]


def failing_writes(record):
    """Yield failing writes with the errors they raise."""
    yield sqlite3.IntegrityError, lambda: put(record, ["new", "a", "new"])
    yield ValueError, lambda: put(record, ["a", "new"], rows=1)
    yield ValueError, lambda: put(record, ["a", "new"], [{"x": 1}])
    yield BadValueError, lambda: put(record, ["a", "new"], [None, {"x": list(range(300))}])
    yield sqlite3.Error, lambda: put(record, ["a", None])


def test_a_failed_write_changes_nothing(record):
    put(record, ["a", "b"], [{"x": 1}, None])
    before = tables(record)
    for error, write in failing_writes(record):
        with pytest.raises(error):
            write()
        assert tables(record) == before
    assert put(record, ["a"]).labels.tolist() == [3]


def test_the_record_uses_wal_with_full_synchronization_and_takes_more_ids_than_one_sql_statement_can(record):
    connection = record.connect()
    mode, log = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode"))
    connection.close()
    assert (mode, log) == (2, "wal")  # FULL: SQLite waits for the disk at every commit
    ids = [f"id {number}" for number in range(MAX_PARAMETERS + 10)]
    put(record, ids)
    assert len(record.find_items(ids)) == len(record.read_payloads(range(1, len(ids) + 1))) == len(ids)
    assert len(put(record, ids, seed=1).dead) == len(ids)
    assert len(delete(record, ids).dead) == len(ids) and record.count_items() == {"count": 0, "deleted": 2 * len(ids)}


def test_a_reopened_record_and_a_copy_of_an_unclosed_one_have_the_same_content(record, path, tmp_path):
    put(record, ["a", "b", "c"], [{"x": "y"}, None, {"z": [1, {"w": None}]}])
    delete(record, ["b"])
    record.write_meta({"import": {"rows": 3}})
    before = tables(record)
    (tmp_path / "copy").mkdir()
    for file in tmp_path.glob("record.db*"):
        shutil.copy(file, tmp_path / "copy")
    record.close()
    for file in (path, tmp_path / "copy/record.db"):
        again = IndexRecord(file)
        assert tables(again) == before and again.spec == SPEC and again.read_meta("import") == {"rows": 3}
        assert again.read_meta("nothing") is None
        again.close()


def alter(path, pragma):
    """Execute a statement on a database file."""
    db = sqlite3.connect(path)
    db.execute(pragma)
    db.close()


def test_a_record_of_a_newer_schema_is_refused_and_left_unchanged(record, path):
    put(record, ["a"])
    record.close()
    alter(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(UnavailableError, match="upgrade Lathe") as refused:
        IndexRecord(path)
    assert refused.value.code == "newer_schema" and path.read_bytes() == before


def test_a_read_only_record_sees_new_writes_and_refuses_to_write(record, path):
    reader = IndexRecord(path, read_only=True)
    put(record, ["a"])
    assert reader.count_items()["count"] == 1
    for write in (lambda: put(reader, ["b"]), lambda: delete(reader, ["a"]), lambda: reader.write_meta({"x": 1})):
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            write()
    reader.close()
    assert record.count_items() == {"count": 1, "deleted": 0}


def test_float16_originals_are_rounded_to_the_nearest_float16(path):
    spec = replace(SPEC, originals="float16")
    record = IndexRecord.create(path, spec, None)
    put(record, ["a", "b"], spec=spec)
    np.testing.assert_array_equal(
        record.read_rows_after(0, 9, spec)[1], vectors(2).astype(np.float16).astype(np.float32)
    )
    record.close()


def test_an_index_on_a_full_disk_serves_and_writes_again_once_there_is_space(record, tmp_path):
    with opened(tmp_path) as index:
        index.upsert(["a"], vectors(1), [None], None).result()
        before, make_room, many = tables(record), fill(index.record.writer), [str(number) for number in range(2000)]
        with pytest.raises(sqlite3.Error) as full:
            index.upsert(["a", *many], vectors(2001, 1), [{"x": 1}] * 2001, None).result()
        refused = convert_error(full.value)
        assert (refused.status, refused.code, "nothing was written" in refused.message) == (503, "disk_full", True)
        assert tables(record) == before
        assert [hit["id"] for hit in index.get_serving().search(Query(vectors(1), 5))[0]] == ["a"]
        make_room()
        index.upsert(many, vectors(2000, 1), [{"x": 1}] * 2000, None).result()
        assert index.get_serving().search(Query(vectors(2000, 1)[-1:], 1))[0][0]["id"] == "1999"


@pytest.mark.parametrize("how", ["deleted", "replaced", "moved with its folder"])
def test_a_record_whose_file_is_gone_takes_no_more_writes(record, path, how):
    put(record, ["a"])
    if how == "deleted":
        path.unlink()
    elif how == "replaced":
        copy = path.with_name("copy")
        shutil.copy(path, copy)
        copy.replace(path)
    else:
        path.parent.rename(path.parent.with_name("elsewhere"))
    with pytest.raises(UnavailableError, match="was deleted or replaced while the server has it open"):
        put(record, ["b"])
    with record.writing:
        assert record.writer.execute("SELECT count(*) FROM items").fetchone() == (1,)
