import threading
import time

import numpy as np
import pytest

from lathe.service.index.embedded.graphs.graph import GraphLock
from lathe.service.index.embedded.index import EmbeddedIndex
from lathe.service.index.embedded.indexes import acquire_index
from lathe.service.index.embedded.maintenance import Maintainer
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.query import Query
from lathe.service.index.spec import IndexSpec

PATIENCE = 10.0


class Watched:
    """GraphLock with a note of every change of ef, and threads that are joined at the end."""

    def __init__(self):
        self.changes = []
        self.lock = GraphLock(self.changes.append)
        self.threads = []

    def hold(self, ef, entered=None):
        """Hold the lock in a new thread, to search with `ef` or to write if None, and return `entered` and `let_go`."""
        entered, let_go = entered or threading.Event(), threading.Event()

        def body():
            with self.lock.acquire_exclusive() if ef is None else self.lock.acquire_shared(ef):
                entered.set()
                assert let_go.wait(PATIENCE)

        self.start(body)
        return entered, let_go

    def start(self, body):
        thread = threading.Thread(target=body, daemon=True)
        self.threads.append(thread)
        thread.start()

    def queue(self, ef):
        """Do as `hold` for a lock that is held, and return once the thread waits for it."""
        line = len(self.lock.waiting)
        held = self.hold(ef)
        deadline = time.monotonic() + PATIENCE
        while len(self.lock.waiting) == line:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return held

    def join(self):
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def watched():
    """Return a lock that notes each change of ef. Join its threads afterwards."""
    watched = Watched()
    yield watched
    watched.join()


def test_the_lock_is_granted_in_order_of_arrival_and_shared_by_adjacent_equal_ef(watched):
    entered, done = watched.hold(None)
    assert entered.wait(PATIENCE)
    line = [watched.queue(ef) for ef in (50, 50, None, 60, 50, 50)]
    done.set()
    for together in ([0, 1], [2], [3], [4, 5]):
        assert all(line[place][0].wait(PATIENCE) for place in together)
        assert [place for place, held in enumerate(line) if held[0].is_set()] == list(range(together[-1] + 1))
        for place in together:
            line[place][1].set()
    watched.join()
    assert watched.changes == [50, 60, 50]


def test_an_error_in_the_block_releases_the_lock(watched):
    for turn in (watched.lock.acquire_exclusive, lambda: watched.lock.acquire_shared(50)):
        with pytest.raises(ZeroDivisionError), turn():
            raise ZeroDivisionError
        with watched.lock.acquire_exclusive():
            pass
    assert watched.lock.holders == 0


def test_searches_during_writes_find_stored_items_and_never_deleted_ones(tmp_path):
    pytest.importorskip("hnswlib")
    spec = IndexSpec(None, None, width=16, raw_space_id="r", chain="none", dimensions=16, space_id="r")
    IndexRecord.create(tmp_path / "record.db", spec, None).close()
    index = EmbeddedIndex("x", tmp_path, acquire_index(tmp_path, "x"), 1, 1, lambda spec, texts: None, exact_rows=20)
    index.start(Maintainer(index).run)
    draw, gone, wrong, done = np.random.default_rng(0), set(), [], threading.Event()
    stays = draw.normal(size=(200, 16)).astype(np.float32)
    index.upsert([f"stays {number}" for number in range(200)], stays, [None] * 200, None).result()

    def search(seed):
        picks = np.random.default_rng(seed)
        while not done.is_set():
            place, barred = int(picks.integers(200)), set(gone)
            queries = np.concatenate([stays[place : place + 1], picks.normal(size=(3, 16)).astype(np.float32)])
            try:
                hits = index.get_serving().search(Query(queries, 5, ef=int(picks.choice([150, 200, 300]))))
                found = {hit["id"] for one in hits for hit in one}
                if hits[0][0]["id"] != f"stays {place}" or found & barred:
                    wrong.append((place, hits, found & barred))
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=search, args=(seed,), daemon=True) for seed in range(3)]
    for thread in threads:
        thread.start()
    for step in range(25):
        ids = [f"{step} {number}" for number in range(60)]
        index.upsert(ids, draw.normal(size=(60, 16)).astype(np.float32), [None] * 60, None).result()
        index.delete(ids[::2]).result()
        gone.update(ids[::2])
    done.set()
    for thread in threads:
        thread.join(PATIENCE)
    index.close()
    assert not wrong
