import json

import numpy as np
import pytest

from lathe.service.checkup.files import FileStore

VECTORS = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "rows.npy", VECTORS)
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": f"text {row}"}) + "\n" for row in range(3000)))
    return tmp_path


def test_a_sample_keeps_vectors_texts_and_numbers_of_rows_together(files):
    store = FileStore(str(files / "rows.npy"), str(files / "texts.jsonl"), "cosine")
    for most in (100, 5000):
        rows = store.read(most)
        numbers = [int(row) for row in rows.ids]
        assert len({*numbers}) == min(most, 3000) and rows.total == 3000 and numbers != sorted(numbers)
        assert rows.texts == [f"text {row}" for row in numbers]
        assert (rows.vectors == VECTORS[numbers]).all()


def test_a_search_compares_the_rows_that_have_a_direction(files):
    broken = VECTORS.copy()
    broken[5], broken[6] = np.nan, 0
    np.save(files / "broken.npy", broken)
    store = FileStore(str(files / "broken.npy"), None, "l2")
    assert np.isnan(store.read(3000).vectors).any()
    hits = store.search(VECTORS[5:8], 3)
    assert hits.ids[2][0] == "7" and not {"5", "6"} & {row for ids in hits.ids for row in ids}
    distances = np.linalg.norm(np.delete(VECTORS, [5, 6], axis=0) - VECTORS[5], axis=1)
    assert hits.ids[0][0] == str(np.delete(np.arange(3000), [5, 6])[distances.argmin()])
