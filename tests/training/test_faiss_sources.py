import faiss
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


def test_a_damaged_file_is_refused_with_its_name(tmp_path):
    (tmp_path / "broken.faiss").write_bytes(b"nothing of the kind" * 50)
    with pytest.raises(SourceError, match="broken.faiss is not a"):
        rows_of(open_source(str(tmp_path / "broken.faiss")))
