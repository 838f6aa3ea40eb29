import faiss
import h5py
import numpy as np
import pytest

from lathe.training.errors import SourceError
from lathe.training.sources.source import open_source


@pytest.fixture(scope="module")
def vectors():
    return np.random.default_rng(0).normal(size=(2500, 8)).astype(np.float32)


def rows_of(source):
    batches = list(source.batches())
    return np.concatenate([batch.values for batch in batches]), [r for batch in batches for r in batch.records]


def test_an_hdf5_source_reads_the_train_set_or_the_named_one(tmp_path, vectors):
    path = tmp_path / "small.hdf5"
    with h5py.File(path, "w") as file:
        file["train"], file["test"] = vectors, vectors[:7]
        file["neighbors"] = np.zeros((7, 10), np.int32)
    source = open_source(str(path))
    assert (source.kind(), source.count()) == ("vectors", 2500)
    np.testing.assert_array_equal(rows_of(source)[0], vectors)
    named = open_source(f"{path}#test")
    assert named.count() == 7
    np.testing.assert_array_equal(rows_of(named)[0], vectors[:7])
    for field, reason in (("nothing", "it has neighbors, test, train"), ("neighbors", "must hold floats")):
        with pytest.raises(SourceError, match=reason):
            rows_of(open_source(f"{path}#{field}"))


@pytest.mark.parametrize("kind", [faiss.IndexFlatIP, faiss.IndexFlatL2])
def test_a_flat_faiss_index_is_read_with_its_vectors_and_ids(tmp_path, vectors, kind):
    plain, mapped = kind(8), faiss.IndexIDMap2(kind(8))
    plain.add(vectors)
    mapped.add_with_ids(vectors, np.arange(2500) + 10**12)
    faiss.write_index(plain, str(tmp_path / "plain.faiss"))
    faiss.write_index(mapped, str(tmp_path / "mapped.faiss"))
    found, records = rows_of(open_source(str(tmp_path / "plain.faiss")))
    np.testing.assert_array_equal(found, vectors)
    assert records == []
    source = open_source(str(tmp_path / "mapped.faiss"))
    found, records = rows_of(source)
    np.testing.assert_array_equal(found, vectors)
    assert [record["id"] for record in records[:2]] == ["1000000000000", "1000000000001"]
    assert source.count() == 2500


def test_a_quantized_faiss_index_is_refused(tmp_path, vectors):
    quantized = faiss.IndexScalarQuantizer(8, faiss.ScalarQuantizer.QT_8bit)
    quantized.train(vectors)
    quantized.add(vectors)
    faiss.write_index(quantized, str(tmp_path / "sq.faiss"))
    with pytest.raises(SourceError, match="only flat indexes"):
        rows_of(open_source(str(tmp_path / "sq.faiss")))


@pytest.mark.parametrize("name", ["broken.hdf5", "broken.faiss"])
def test_a_damaged_hdf5_or_faiss_file_is_refused_with_its_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x93HDF nothing of the kind" * 50)
    with pytest.raises(SourceError, match=f"{name} is not a"):
        rows_of(open_source(str(tmp_path / name)))
