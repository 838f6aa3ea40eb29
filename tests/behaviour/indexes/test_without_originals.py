"""Indexes that store the codes of their items alone."""

import numpy as np
import pytest

from lathe.service.errors import BadValueError, UnavailableError
from lathe.service.index.embedded.index import EmbeddedIndex
from lathe.service.index.embedded.indexes import acquire_index
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.query import Query
from lathe.transforms.errors import InputError
from tests.service.index.opening import opened

STEPS = "r2,codes:8"
ROWS = 300


def found(index, queries, **options):
    results = index.get_serving().search(Query(queries, 10, **options))
    return [[(hit["id"], round(hit["score"], 4)) for hit in hits] for hits in results]


@pytest.fixture(params=[STEPS, "int8"])
def folders(request, tmp_path, chain_of, coded_spec, biased):
    """Build two closed indexes of the same items, with and without originals, and return their folders."""
    made = []
    for originals in ("float32", "none"):
        folder = tmp_path / originals / "x"
        folder.mkdir(parents=True)
        spec = coded_spec(originals=originals)
        IndexRecord.create(folder / "record.db", spec, chain_of(request.param)[1]).close()
        with opened(folder) as index:
            index.upsert([str(n) for n in range(ROWS)], biased(ROWS), [{"n": n} for n in range(ROWS)], None).result()
            index.upsert(["7"], biased(1, 3), [None], None).result()
            index.delete(["9"]).result()
        made.append(folder)
    return made


def test_an_index_without_originals_finds_what_one_with_originals_finds(folders, biased):
    for rebuilt in (False, True):
        answers = []
        for folder in folders:
            if rebuilt:
                for file in (folder / "graph-1").iterdir():
                    file.unlink()
            with opened(folder) as index:
                assert bool(index.generation.notes) == rebuilt
                answers.append(found(index, biased(30, 8)))
        assert answers[0] == answers[1]


def test_nothing_but_codes_is_stored(folders):
    _, folder = folders
    assert not (folder / "graph-1" / "originals.f16").exists()
    with opened(folder) as index:
        width = index.generation.vector_format.width
        with index.record.reading() as db:
            sizes = {row[0] for row in db.execute("SELECT length(vector) FROM vectors_1")}
        assert sizes == {width}
        described = index.describe()
        assert described["originals"] == "none"
        assert described["bytes"]["rows"] == (ROWS + 1) * (8 + width)
        assert described["memory"]["page_cache"] == {"labels.i64": 8 * (ROWS + 1), "codes.u8": width * (ROWS + 1)}


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value")
def test_vectors_without_codes_are_refused_and_nothing_is_written(folders, biased):
    with opened(folders[1]) as index:
        before, given = index.describe()["sequence"], biased(2)
        given[1, 3] = np.nan
        with pytest.raises((BadValueError, InputError)):
            index.upsert(["a", "b"], given, [None] * 2, None).result()
        assert index.describe()["sequence"] == before and index.get(["a"], vectors=False) == [None]


@pytest.mark.parametrize("other", ["r2,codes:6", "cut"])
def test_a_record_with_codes_of_another_chain_is_refused_with_the_reason(tmp_path, chain_of, coded_spec, biased, other):
    """Codes are the only copy, so that nothing can be rebuilt."""
    spec = coded_spec(originals="none")
    IndexRecord.create(tmp_path / "record.db", spec, chain_of(STEPS)[1]).close()
    with opened(tmp_path) as index:
        index.upsert([str(n) for n in range(20)], biased(20), [None] * 20, None).result()
    record = IndexRecord(tmp_path / "record.db")
    with record.transaction() as db:
        if other == "cut":
            db.execute("UPDATE vectors_1 SET vector = substr(vector, 1, 5) WHERE label = 3")
        else:
            db.execute("UPDATE chains SET manifest = ?, tensors = ?", chain_of(other)[1])
    record.close()
    for file in (tmp_path / "graph-1").iterdir():
        file.unlink()
    message = "vectors of another size" if other == "cut" else "codes of 8 bytes, and its chain has codes of 6"
    with pytest.raises(UnavailableError, match=message):
        EmbeddedIndex("x", tmp_path, acquire_index(tmp_path, "x"), 1, 1, lambda spec, texts: None)
