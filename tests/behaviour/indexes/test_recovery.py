import shutil

import numpy as np
import pytest

from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.query import Query
from lathe.service.index.spec import IndexSpec
from tests.service.index.opening import opened

SPEC = IndexSpec(None, None, 8, "raw", "none", 8, "raw")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "x"
    folder.mkdir()
    IndexRecord.create(folder / "record.db", SPEC, None).close()
    return folder


def put(index, count, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)
    index.upsert([f"{seed}.{number}" for number in range(count)], vectors, [None] * count, None).result()
    return vectors


def found(index, vectors):
    return [hits[0]["id"] for hits in index.get_serving().search(Query(vectors, 1))]


def test_an_index_with_a_record_older_than_its_snapshot_is_rebuilt_from_the_record(folder, tmp_path):
    with opened(folder) as index:
        first = put(index, 30)
    shutil.copy(folder / "record.db", tmp_path / "earlier.db")
    with opened(folder) as index:
        index.delete(["0.0"]).result()
        put(index, 20, seed=1)
    shutil.copy(tmp_path / "earlier.db", folder / "record.db")
    with opened(folder) as index:
        (note,) = index.generation.notes
        assert "snapshot and record disagreed" in note
        assert index.describe()["count"] == 30
        assert found(index, first) == [f"0.{number}" for number in range(30)]
    with opened(folder) as index:
        assert index.generation.notes == []


def test_a_folder_in_place_of_a_file_of_rows_is_replaced(folder):
    with opened(folder) as index:
        vectors = put(index, 30)
    rows = folder / "graph-1" / "reduced.f32"
    rows.unlink()
    rows.mkdir()
    with opened(folder) as index:
        (note,) = index.generation.notes
        assert "reduced.f32" in note
        assert found(index, vectors) == [f"0.{number}" for number in range(30)]


def test_an_item_whose_rows_could_not_be_appended_is_added_with_the_next_write(folder):
    with opened(folder) as index:
        put(index, 10)
        append = index.generation.rows.append
        index.generation.rows.append = lambda *_: (_ for _ in ()).throw(MemoryError)
        with pytest.raises(MemoryError):
            put(index, 10, seed=1)
        index.generation.rows.append = append
        third = put(index, 10, seed=2)
        assert index.describe()["count"] == index.record.count_items()["count"] == 30
        assert found(index, third) == [f"2.{number}" for number in range(10)]


def test_describe_notes_a_large_share_of_dead_rows_and_how_to_compact(folder):
    with opened(folder) as index:
        put(index, 100)
        assert index.describe()["notes"] == []
        index.delete([f"0.{number}" for number in range(40)]).result()
        (note,) = index.describe()["notes"]
        assert "40 of 100 rows" in note and "compacts" in note
