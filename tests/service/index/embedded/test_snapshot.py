import shutil
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from lathe.service.errors import BadValueError
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.snapshot import SNAPSHOT, read_snapshot, save_snapshot
from lathe.service.index.query import Query
from lathe.service.index.spec import IndexSpec
from tests.service.index.opening import opened

hnswlib = pytest.importorskip("hnswlib")

SPEC = IndexSpec(
    encoder=None, encoder_fingerprint=None, width=16, raw_space_id="r", chain="none", dimensions=16, space_id="r"
)
ROWS = 300


def normal(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, 16)).astype(np.float32)


def create(folder, spec=SPEC):
    """Create an empty record in a folder."""
    IndexRecord.create(folder / "record.db", spec, None).close()


def fill(index, rows=ROWS):
    """Insert, delete and replace items, and add all but 50 rows to the graph."""
    index.upsert([str(number) for number in range(rows)], normal(rows), [{"n": n} for n in range(rows)], None).result()
    index.delete(["3", "4"]).result()
    index.upsert(["5"], normal(1, 5), [None], None).result()
    index.generation.extend_graph(rows - 50, 1)


@pytest.fixture
def folder(tmp_path):
    """Build an index that was closed with a snapshot and return its folder."""
    (tmp_path / "index").mkdir()
    create(tmp_path / "index")
    with opened(tmp_path / "index") as index:
        fill(index)
    return tmp_path / "index"


def found(index):
    """Return ids and scores of the hits of 20 queries."""
    hits = index.get_serving().search(Query(normal(20, 1), 10))
    return [[hit["id"] for hit in one] for one in hits], np.array([[hit["score"] for hit in one] for one in hits])


def state(index):
    """Return copies of the arrays of the current rows."""
    view = index.generation.rows.take_view()
    return [array.copy() for array in (view.labels, view.originals, view.compact, view.alive)]


def assert_same(index, answers, arrays):
    """Assert that an index gives these hits and has exactly these rows."""
    assert found(index)[0] == answers[0]
    np.testing.assert_array_equal(found(index)[1], answers[1])
    for now, then in zip(state(index), arrays, strict=True):
        np.testing.assert_array_equal(now, then)


def test_an_index_restored_from_a_snapshot_has_bit_equal_rows_and_results(tmp_path):
    create(tmp_path)
    with opened(tmp_path, exact_rows=20) as index:
        fill(index)
        answers, arrays, covered = found(index), state(index), index.generation.covered
    with opened(tmp_path, exact_rows=20) as index:
        assert index.generation.notes == [] and index.generation.covered == covered == ROWS - 50
        assert_same(index, answers, arrays)
        assert index.generation.extend_graph(10**9, 1) == 0


def test_each_snapshot_replaces_the_one_before_and_its_graph_file(folder):
    with opened(folder) as index:
        for step in range(3):
            index.upsert([f"new {step}"], normal(1, 70 + step), [None], None).result()
            index.generation.extend_graph(60, 1)
            sealed = save_snapshot(index.generation)
            assert read_snapshot(index.generation.folder) | {"sha256": sealed["sha256"]} == sealed
            assert sealed["rows"] == index.generation.rows.count and sealed["covered"] == index.generation.covered
            assert [file.name for file in index.generation.folder.glob("*.hnsw")] == [sealed["graph"]]
    with opened(folder) as index:
        assert index.generation.notes == []


def test_an_empty_index_is_saved_and_restored(tmp_path):
    create(tmp_path)
    for _ in range(2):
        with opened(tmp_path) as index:
            assert index.generation.notes == [] and index.generation.covered == 0
            assert found(index)[0] == [[]] * 20


def flip(path):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "flipped": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "nonsense": lambda path: path.write_bytes(b"[1, 2]" * 1000),
}
FILES = ["labels.i64", "originals.f16", "reduced.f32", f"graph.{ROWS - 50}.hnsw", SNAPSHOT]


@pytest.mark.parametrize(
    ("name", "damage"), [*((name, "flipped") for name in FILES), *((name, "missing") for name in FILES),
                         ("labels.i64", "cut"), (FILES[3], "empty"), (SNAPSHOT, "nonsense")],
)  # fmt: skip
def test_a_damaged_file_is_named_in_the_notes_and_rebuilt_from_the_record(folder, name, damage):
    """A later snapshot is whole."""
    with opened(folder, snapshot=False) as index:
        answers = found(index)
    DAMAGES[damage](folder / "graph-1" / name)
    with opened(folder) as index:
        (note,) = index.generation.notes
        assert {"graph": "missing or damaged", "snaps": "snapshot"}.get(name[:5], "the rows' checksums") in note
        assert index.generation.covered == 0 and index.describe()["notes"] == [note]
        assert found(index)[0] == answers[0]
        np.testing.assert_allclose(found(index)[1], answers[1], atol=1e-6)
        index.upsert([f"new {number}" for number in range(10)], normal(10, 8), [None] * 10, None).result()
        answers, arrays = found(index), state(index)
    with opened(folder) as index:
        assert index.generation.notes == []
        assert_same(index, answers, arrays)


def test_bytes_after_the_last_row_of_a_snapshot_are_ignored(folder):
    for name, row_bytes in (("labels.i64", 8), ("originals.f16", 32), ("reduced.f32", 64)):
        with (folder / "graph-1" / name).open("r+b") as file:
            file.seek((ROWS + 1) * row_bytes)
            file.write(b"\xff" * 5000)
    with opened(folder) as index:
        assert index.generation.notes == []
        index.upsert(["z"], normal(1, 1), [None], None).result()
        hits = index.get_serving().search(Query(normal(1, 1), ROWS))[0]
        assert hits[0]["id"] == "z" and len(hits) == ROWS - 1


def test_a_copy_of_an_open_index_has_every_write_after_the_snapshot(folder, tmp_path):
    with opened(folder) as index:
        index.upsert(["later", "7"], normal(2, 1), [{"n": -1}, None], None).result()
        index.delete(["8", "later"]).result()
        index.upsert(["last"], normal(1, 2), [None], None).result()
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        answers, alive = found(index), [array[state(index)[3]] for array in state(index)]
    with opened(copy) as index:
        assert index.generation.notes == [] and index.record.find_items(["later", "8"]) == {}
        assert found(index)[0] == answers[0]
        for now, then in zip(state(index), alive, strict=True):
            np.testing.assert_array_equal(now[state(index)[3]], then)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("scale", [1e6, 1e-9])
def test_float16_originals_are_refused_or_find_the_same_items_after_a_rebuild(tmp_path, scale):
    create(tmp_path, replace(SPEC, originals="float16"))
    given, ids = normal(20) * np.float32(scale), [str(number) for number in range(20)]
    with opened(tmp_path, snapshot=False) as index:
        with suppress(BadValueError):
            index.upsert(ids, given, [None] * 20, None).result()
        kept = index.record.count_items()["count"]
    shutil.rmtree(tmp_path / "graph-1")
    with opened(tmp_path) as index:
        hits = index.get_serving().search(Query(given, 1))
        assert [one[0]["id"] for one in hits if one] == ids[:kept]
