import resource
from contextlib import suppress
from pathlib import Path

import faiss
import numpy as np
import pytest

from lathe.training.errors import SourceError
from lathe.training.sources.faiss_indexes import read_faiss_metric
from lathe.training.sources.source import open_source


@pytest.fixture(scope="module")
def vectors():
    return np.random.default_rng(0).normal(size=(2500, 8)).astype(np.float32)


def rows_of(source):
    batches = list(source.batches())
    return np.concatenate([batch.values for batch in batches]), [r for batch in batches for r in batch.records]


def test_a_flat_faiss_index_is_read_with_its_vectors_and_ids(tmp_path, vectors):
    plain, mapped = faiss.IndexFlatIP(8), faiss.IndexIDMap2(faiss.IndexFlatL2(8))
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


def written(path, kind, vectors, ids=None, metric=faiss.METRIC_L2):
    """Write an index of FAISS's own kinds that is trained on the vectors and holds them, and return its path."""
    index = faiss.index_factory(8, kind, metric)
    if not index.is_trained:
        index.train(vectors)
    if ids is None:
        index.add(vectors)
    else:
        index.add_with_ids(vectors, ids)
    faiss.write_index(index, str(path))
    return str(path)


@pytest.mark.parametrize("kind", ["HNSW8", "IVF4_HNSW4,Flat", "NSG8", "SQ8,RFlat", "IDMap,HNSW8", "IDMap2,IVF4,Flat"])
def test_an_index_that_keeps_the_vectors_is_read_in_the_order_of_its_rows(tmp_path, vectors, kind):
    ids = np.arange(2500)[::-1] * 7 if "IDMap" in kind else None
    source = open_source(written(tmp_path / "a.faiss", kind, vectors, ids))
    found, records = rows_of(source)
    np.testing.assert_array_equal(found, vectors)
    assert [record["id"] for record in records] == ([] if ids is None else [str(number) for number in ids])
    assert source.count() == 2500 and source.detect_kind() == 8


def test_an_ivf_index_with_ids_of_its_own_is_read_in_their_order(tmp_path, vectors):
    ids = np.random.default_rng(0).permutation(2500) + 10**12
    found, records = rows_of(open_source(written(tmp_path / "a.faiss", "IVF8,Flat", vectors, ids)))
    order = ids.argsort()
    np.testing.assert_array_equal(found, vectors[order])
    assert [int(record["id"]) for record in records] == ids[order].tolist()


def test_the_metric_of_an_index_is_read_from_its_header(tmp_path, vectors):
    for kind in ("Flat", "HNSW8", "IVF4,Flat", "IDMap,HNSW8"):
        for metric, name in ((faiss.METRIC_INNER_PRODUCT, "ip"), (faiss.METRIC_L2, "l2")):
            ids = np.arange(200) if "IDMap" in kind else None
            assert read_faiss_metric(Path(written(tmp_path / "a.faiss", kind, vectors[:200], ids, metric))) == name, (
                kind
            )


def test_an_index_that_does_not_keep_the_vectors_is_refused(tmp_path, vectors):
    for kind in ("SQ8", "HNSW8,SQ8", "IVF4,SQ8", "IVF4,PQ4x4", "PCA4,Flat", "L2norm,Flat"):
        with pytest.raises(SourceError, match=r"a.faiss is not a FAISS index whose vectors can be read; allowed are"):
            rows_of(open_source(written(tmp_path / "a.faiss", kind, vectors[:900])))


@pytest.mark.parametrize("present", [True, False])
def test_lists_in_another_file_are_not_read_wherever_that_is(tmp_path, vectors, present):
    index = faiss.index_factory(8, "IVF4,Flat")
    index.train(vectors)
    index.add(vectors[:100])
    (tmp_path / "elsewhere").mkdir()
    lists = faiss.OnDiskInvertedLists(index.nlist, index.code_size, str(tmp_path / "elsewhere" / "lists"))
    lists.merge_from_1(index.invlists)
    index.replace_invlists(lists)
    faiss.write_index(index, str(tmp_path / "a.faiss"))
    if present:
        (tmp_path / "lists").write_bytes((tmp_path / "elsewhere" / "lists").read_bytes())
    message = (
        "a.faiss stores its vectors in another file" if present else "a.faiss is not a FAISS index that can be read"
    )
    with pytest.raises(SourceError, match=message):
        rows_of(open_source(str(tmp_path / "a.faiss")))


@pytest.mark.release
@pytest.mark.parametrize("kind", ["HNSW8", "IVF4,Flat"])
def test_a_file_that_claims_more_than_it_holds_is_refused_without_the_memory(tmp_path, vectors, kind):
    """Each eight bytes in turn are taken for a count, and made a billion."""
    path = Path(written(tmp_path / "a.faiss", kind, vectors[:150]))
    content, before = path.read_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for place in range(8, min(len(content) - 8, 1000)):
        path.write_bytes(content[:place] + (10**9).to_bytes(8, "little") + content[place + 8 :])
        with suppress(SourceError):
            rows_of(open_source(str(path)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_a_damaged_file_is_refused_with_its_name(tmp_path):
    (tmp_path / "broken.faiss").write_bytes(b"nothing of the kind" * 50)
    with pytest.raises(SourceError, match="broken.faiss is not a"):
        rows_of(open_source(str(tmp_path / "broken.faiss")))
