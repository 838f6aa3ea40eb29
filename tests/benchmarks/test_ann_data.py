from dataclasses import replace

import h5py
import numpy as np
import pytest

from benchmarks.ann.data import Data, DataError, read_data, split_rows


@pytest.fixture
def hdf5(tmp_path):
    """Return a writer of HDF5 files in the format of ann-benchmarks."""

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
    """Return a writer of .npy files."""

    def write(name, rows):
        np.save(tmp_path / f"{name}.npy", rows)
        return str(tmp_path / f"{name}.npy")

    return write


def keys(rows):
    """Return the rows as a set of bytes."""
    return {row.tobytes() for row in rows}


@pytest.fixture
def data(unit):
    return Data("sets", unit, None, ())


def test_read_data_keeps_the_order_of_vectors_and_scales_them_to_length_one(npy, vectors, unit):
    data = read_data(npy("base", vectors), None, None)
    assert (data.name, data.queries, data.notes) == ("base.npy", None, ())
    assert data.vectors.dtype == np.float32
    np.testing.assert_allclose(data.vectors, unit, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kept", [0, 1, 8, 13])
def test_split_refuses_too_few_vectors_and_names_their_number(unit, kept):
    with pytest.raises(DataError, match=rf"^{kept} distinct vectors leave .* there must be more than k = 10"):
        split_rows(Data("few", unit[:kept], None, ()), 0, 300, 3, 100, 10)


def test_split_samples_given_queries_by_seed_and_puts_every_vector_in_corpus_or_fit(data, unit):
    given = replace(data, vectors=unit[:340], queries=unit[340:])
    cuts = [split_rows(given, seed, 300, 20, 40, 10) for seed in (0, 1)]
    for cut in cuts:
        assert [len(part) for part in (cut.corpus, cut.queries, cut.fit)] == [300, 20, 40]
        assert keys(cut.queries) < keys(unit[340:])
        assert keys(cut.corpus) | keys(cut.fit) == keys(unit[:340])
    assert keys(cuts[0].queries) != keys(cuts[1].queries)
