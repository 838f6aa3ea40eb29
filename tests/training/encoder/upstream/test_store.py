"""What an API answered stays, in bounded space, and a damaged file gives an error or nothing, never other vectors."""

import sqlite3
import threading
import time
from contextlib import closing

import numpy as np
import pytest

from lathe.training.encoder.spec import StoreSettings
from lathe.training.encoder.upstream.store import StoredSpace, UpstreamStore
from lathe.training.encoder.vector_database import BLOCKS
from lathe.training.errors import UpstreamError


@pytest.fixture
def open_store(tmp_path):
    """Return a function that opens a store in the test's folder. The store is closed after the test."""
    opened = []

    def open_one(max_bytes=10**9):
        opened.append(UpstreamStore(StoreSettings(tmp_path / "upstream", max_bytes)))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def key(number):
    """Return a key of 16 bytes."""
    return number.to_bytes(16, "big")


def build_rows(count, width=4):
    """Return `count` rows that differ."""
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


def put(store, numbers, width=4):
    """Store a row for each number."""
    store.put([key(number) for number in numbers], build_rows(len(numbers), width), [1] * len(numbers), "space")


def test_stored_vectors_are_read_bit_equal_by_another_process_and_unknown_keys_are_none(open_store):
    put(open_store(), range(1200))
    found = open_store().get([key(number) for number in (1199, 5000, 0)])
    np.testing.assert_array_equal(found[0].vector, build_rows(1200)[1199])
    assert found[1] is None and found[2].tokens == 1


def test_the_file_stays_near_its_maximum_and_the_newest_vectors_are_in_it(open_store):
    store = open_store(max_bytes=400_000)
    for block in range(12 * BLOCKS):
        put(store, [block], width=512)
    assert store.path.stat().st_size < 800_000
    assert store.get([key(12 * BLOCKS - 1)])[0] is not None and store.get([key(0)])[0] is None


def test_a_file_that_is_no_database_is_refused_with_what_to_do(open_store, tmp_path):
    (tmp_path / "upstream").mkdir()
    (tmp_path / "upstream" / "vectors.db").write_bytes(b"no database" * 1000)
    with pytest.raises(UpstreamError, match="are damaged .*: restore the file from a backup, or move it away"):
        open_store()


def test_a_database_of_another_program_is_refused_and_left_as_it_was(open_store, tmp_path):
    (tmp_path / "upstream").mkdir()
    with closing(sqlite3.connect(tmp_path / "upstream" / "vectors.db")) as theirs, theirs:
        theirs.execute("CREATE TABLE notes (text)")
    with pytest.raises(UpstreamError, match=r"vectors\.db is a database of another program: move the file away"):
        open_store()
    with closing(sqlite3.connect(tmp_path / "upstream" / "vectors.db")) as theirs:
        assert theirs.execute("SELECT name FROM sqlite_master").fetchall() == [("notes",)]


def test_a_file_of_a_later_version_is_refused(open_store):
    store = open_store()
    with store.connection:
        store.connection.execute("PRAGMA user_version = 9")
    with pytest.raises(UpstreamError, match="is of version 9"):
        open_store()


def test_flipped_bits_give_an_error_or_no_vector_but_never_another_one(open_store):
    store = open_store()
    put(store, range(2000), width=16)
    expected = build_rows(2000, 16)
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = store.path.read_bytes()
    store.close()
    chance, damaged = np.random.default_rng(0), 0
    for _ in range(12):
        payload = bytearray(whole)
        for place in chance.integers(0, len(payload), 300):
            payload[place] ^= 1 << int(chance.integers(8))
        store.path.write_bytes(payload)
        try:
            found = open_store().get([key(number) for number in range(2000)])
        except UpstreamError:
            damaged += 1
            continue
        damaged += any(one is None for one in found)
        assert all(one is None or np.array_equal(one.vector, row) for one, row in zip(found, expected, strict=True))
    assert damaged > 0


def test_only_vectors_since_the_last_comparison_of_their_space_are_deleted_with_it(open_store):
    store = open_store()
    put(store, [0])
    store.write_space(StoredSpace("space", {"model": "m"}, build_rows(4), time.time()), "asked")
    put(store, [1, 2])
    store.put([key(3)], build_rows(1), [1], "other space")
    assert store.delete_unconfirmed("space") == 2
    assert [one is not None for one in store.get([key(number) for number in range(4)])] == [True, False, False, True]


def test_two_stores_write_the_same_file_at_once(open_store):
    stores = [open_store(), open_store()]
    threads = [
        threading.Thread(target=lambda s=store, n=number: [put(s, [1000 * n + i]) for i in range(60)])
        for number, store in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].count() == 120
