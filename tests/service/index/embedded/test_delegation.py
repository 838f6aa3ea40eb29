import os
import time
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest

from lathe.service.errors import ConflictError, UnavailableError
from lathe.service.index.embedded.delegation import answer_delegated, delegate
from lathe.service.index.embedded.generation import Generation
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.query import Query
from lathe.service.index.reducer import Reducer
from lathe.service.index.spec import IndexSpec

SPEC = IndexSpec(
    encoder=None, encoder_fingerprint=None, width=8, raw_space_id="r", chain="none", dimensions=8, space_id="r"
)
VECTORS = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)


@pytest.fixture
def generation(tmp_path):
    record = IndexRecord.create(tmp_path / "record.db", SPEC, None)
    generation = Generation(tmp_path / "graph-1", SPEC, record, Reducer(SPEC, None), 1)
    ids = [str(row) for row in range(100)]
    generation.append(record.upsert(ids, VECTORS, [None] * 100, [None] * 100, SPEC).labels, VECTORS)
    return generation


@pytest.fixture
def owner(generation):
    """Answer what is delegated until the test ends."""
    working = True

    def work():
        while working:
            answer_delegated(generation)
            time.sleep(0.01)

    thread = Thread(target=work)
    thread.start()
    yield
    working = False
    thread.join()


def test_the_owner_searches_as_it_does_for_its_own_requests_and_no_file_stays(generation, owner):
    for query in (Query(VECTORS[:3], 5), Query(VECTORS[:2], 4, ef=20, rescoring=2.0, exact=True)):
        labels, scores, _ = generation.search(query)
        answers = delegate(generation.folder, "job", query)
        assert (answers.labels == labels).all() and answers.seconds > 0
        assert answers.scores == pytest.approx(scores, abs=1e-6)
    assert not [*generation.folder.glob("*.npz")]


def test_what_cannot_be_searched_is_an_error_of_the_job(generation, owner):
    with pytest.raises(ConflictError, match="cannot be searched"):
        delegate(generation.folder, "job", Query(np.ones((1, 3), np.float32), 5))
    (generation.folder / "search.other.npz").write_bytes(b"damaged")
    assert delegate(generation.folder, "job", Query(VECTORS[:1], 1)).labels.shape == (1, 1)


def test_without_an_owner_or_a_generation_the_job_ends(generation, monkeypatch):
    monkeypatch.setattr("lathe.service.index.embedded.delegation.OWNER_SECONDS", 0.1)
    with pytest.raises(UnavailableError, match="no server that owns the index answers"):
        delegate(generation.folder, "job", Query(VECTORS[:1], 1))
    with pytest.raises(ConflictError, match="deleted or reindexed"):
        delegate(generation.folder / "gone", "job", Query(VECTORS[:1], 1))


def test_answers_that_no_job_has_read_are_deleted_after_a_while(generation):
    for name, age in (("found.new.npz", 1), ("found.old.npz", 10_000)):
        (generation.folder / name).touch()
        os.utime(generation.folder / name, (time.time() - age,) * 2)
    answer_delegated(generation)
    assert [file.name for file in generation.folder.glob("*.npz")] == ["found.new.npz"]


def test_an_answer_that_its_job_deletes_at_that_moment_is_no_error(generation, monkeypatch):
    (generation.folder / "found.job.npz").touch()
    clock = SimpleNamespace(time=lambda: (generation.folder / "found.job.npz").unlink() or 0.0)
    monkeypatch.setattr("lathe.service.index.embedded.delegation.time", clock)
    answer_delegated(generation)
    assert not [*generation.folder.glob("found.*")]
