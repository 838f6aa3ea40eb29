import re
from dataclasses import replace

import h5py
import numpy as np
import pytest

from benchmarks.ann.data import Data, DataError, distinct, nearest, read_data, split
from training.errors import SourceError


@pytest.fixture
def hdf5(tmp_path):
    """A writer of files as ann-benchmarks has them."""

    def write(distance, **sets):
        with h5py.File(tmp_path / "sets.hdf5", "w") as file:
            if distance is not None:
                file.attrs["distance"] = distance
            for name, rows in sets.items():
                file[name] = rows
        return str(tmp_path / "sets.hdf5")

    return write


@pytest.fixture
def npy(tmp_path):
    """A writer of .npy files."""

    def write(name, rows):
        np.save(tmp_path / f"{name}.npy", rows)
        return str(tmp_path / f"{name}.npy")

    return write


def keys(rows):
    return {row.tobytes() for row in rows}


@pytest.fixture
def data(unit):
    return Data("sets", unit, None, ())


def test_vectors_of_a_file_keep_their_order_and_get_length_one(npy, vectors, unit):
    data = read_data(npy("base", vectors), None, None)
    assert (data.name, data.queries, data.notes) == ("base.npy", None, ())
    assert data.vectors.dtype == np.float32
    np.testing.assert_allclose(data.vectors, unit, rtol=0, atol=1e-6)


def test_a_source_of_vectors_is_read_like_a_file(npy, vectors):
    path = npy("base", vectors)
    np.testing.assert_array_equal(read_data(None, path, None).vectors, read_data(path, None, None).vectors)


@pytest.mark.parametrize("distance", ["angular", "cosine", b"angular", None])
def test_an_angular_file_is_accepted_whatever_the_lengths(hdf5, vectors, unit, distance):
    data = read_data(hdf5(distance, train=vectors[:300], test=vectors[300:]), None, None)
    np.testing.assert_allclose(data.vectors, unit[:300], rtol=0, atol=1e-6)
    np.testing.assert_allclose(data.queries, unit[300:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("distance", ["euclidean", b"euclidean", "hamming", "ip"])
def test_another_distance_is_accepted_for_unit_vectors_only(hdf5, vectors, unit, distance):
    data = read_data(hdf5(distance, train=unit[:300], test=unit[300:]), None, None)
    assert (len(data.vectors), len(data.queries)) == (300, 100)
    lengths = np.linalg.norm(vectors[:300], axis=1)
    told = f"'{distance if isinstance(distance, str) else distance.decode()}' and its vectors have lengths from "
    told += f"{lengths.min():.3g} to {lengths.max():.3g}: text embeddings are compared by their directions"
    with pytest.raises(DataError, match=re.escape(told)):
        read_data(hdf5(distance, train=vectors[:300], test=vectors[300:]), None, None)


def test_a_single_long_vector_is_enough_to_refuse_a_euclidean_file(hdf5, unit):
    unit = unit.copy()
    unit[7] *= 1.01
    with pytest.raises(DataError, match="'euclidean'"):
        read_data(hdf5("euclidean", train=unit[:300], test=unit[300:]), None, None)


def test_a_file_of_bits_is_refused(hdf5, vectors):
    with pytest.raises(SourceError, match="must hold floats"):
        read_data(hdf5("hamming", train=vectors[:300] > 0, test=vectors[300:] > 0), None, None)


def test_an_hdf5_file_has_its_own_queries_unless_others_are_named(hdf5, npy, vectors, unit):
    path = hdf5("angular", train=vectors[:300], test=vectors[300:])
    named = read_data(path, None, npy("queries", vectors[350:]))
    np.testing.assert_allclose(named.queries, unit[350:], rtol=0, atol=1e-6)
    with pytest.raises(SourceError, match="no data set 'test'"):
        read_data(hdf5("angular", train=vectors), None, None)


def test_queries_inside_the_corpus_are_left_out_and_it_is_said(npy, vectors, unit):
    asked = np.vstack([2 * vectors[:3], vectors[300:305]])  # another length is the same direction
    data = read_data(npy("base", vectors[:300]), None, npy("queries", asked))
    assert data.notes == ("3 queries are among the vectors and were left out",)
    assert data.notes_as_sentences == ["3 queries are among the vectors and were left out."]
    np.testing.assert_allclose(data.queries, unit[300:305], rtol=0, atol=1e-6)


def test_zero_rows_and_duplicates_are_left_out_and_it_is_said(vectors, unit):
    notes = []
    zero = np.zeros((2, vectors.shape[1]), np.float32)
    found = distinct(np.vstack([zero, vectors[:9], 4 * vectors[3:6], -vectors[:1], zero]), "rows", notes)
    assert notes == ["4 of 17 rows are zero and were left out", "3 of 13 rows are duplicates and were left out"]
    np.testing.assert_allclose(found, [*unit[:9], -unit[0]], rtol=0, atol=1e-6)


def test_a_zero_is_the_same_with_either_sign():
    notes = []
    assert len(distinct(np.array([[1, 0.0], [1, -0.0], [0, 1]], np.float32), "rows", notes)) == 2
    assert len(notes) == 1


def test_queries_of_another_width_are_refused(npy, vectors):
    with pytest.raises(DataError, match="the queries are 8 wide, the vectors 32"):
        read_data(npy("base", vectors), None, npy("queries", vectors[:, :8]))


@pytest.mark.parametrize("kept", [0, 1, 8, 13])
def test_too_few_vectors_are_refused_with_their_number(unit, kept):
    with pytest.raises(DataError, match=rf"^{kept} distinct vectors leave .* there must be more than k = 10"):
        split(Data("few", unit[:kept], None, ()), 0, 300, 3, 100, 10)


def test_a_file_whose_queries_were_all_left_out_is_refused(npy, vectors):
    data = read_data(npy("base", vectors), None, npy("queries", vectors[:5]))
    with pytest.raises(DataError, match="with 0 queries: .*, and a query"):
        split(data, 0, 300, 20, 60, 10)


def test_a_split_shares_no_row(data):
    cut = split(data, 0, 300, 20, 60, 10)
    assert [len(part) for part in (cut.corpus, cut.queries, cut.fit)] == [300, 20, 80]
    parts = [keys(part) for part in (cut.corpus, cut.queries, cut.fit)]
    assert len(set.union(*parts)) == 400
    assert set.union(*parts) == keys(data.vectors)


def test_a_split_is_its_seeds_own_and_comes_again(data):
    first, again, other = (split(data, seed, 300, 20, 60, 10) for seed in (0, 0, 1))
    for name in ("corpus", "queries", "fit"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
        assert keys(getattr(first, name)) != keys(getattr(other, name))


def test_given_queries_are_drawn_by_each_seed_and_leave_the_vectors_alone(data, unit):
    given = replace(data, vectors=unit[:340], queries=unit[340:])
    cuts = [split(given, seed, 300, 20, 40, 10) for seed in (0, 1)]
    for cut in cuts:
        assert [len(part) for part in (cut.corpus, cut.queries, cut.fit)] == [300, 20, 40]
        assert keys(cut.queries) < keys(unit[340:])
        assert keys(cut.corpus) | keys(cut.fit) == keys(unit[:340])
    assert keys(cuts[0].queries) != keys(cuts[1].queries)


def test_what_is_asked_too_much_leaves_a_fifth_to_fit_on(data):
    cut = split(data, 0, 10_000, 100, 8000, 10)
    assert [len(part) for part in (cut.corpus, cut.queries, cut.fit)] == [256, 80, 64]


def test_a_digest_tells_vectors_and_queries_from_others(data, unit):
    kinds = [data, replace(data, vectors=unit[::-1].copy()), replace(data, queries=unit[:5])]
    assert len({kind.digest for kind in kinds}) == 3
    assert replace(data, name="other", vectors=unit.copy()).digest == data.digest


@pytest.mark.parametrize("k", [1, 10, 400, 500])
def test_nearest_is_brute_force(unit, k, clusters):
    queries = clusters(300, 32, seed=1)  # more than a block of them
    found = nearest(queries, unit, k)
    scores = queries.astype(np.float64) @ unit.T.astype(np.float64)
    assert found.shape == (300, min(k, 400)) and found.dtype == np.int64
    assert all(len(set(row)) == len(row) for row in found.tolist())
    best = -np.sort(-scores, axis=1)[:, :k]
    np.testing.assert_allclose(np.take_along_axis(scores, found, axis=1), best, rtol=0, atol=1e-5)
