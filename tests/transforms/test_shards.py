import numpy as np
import pytest

from transforms import InputError, Moments
from transforms.shards import shard_moments


@pytest.fixture(scope="module")
def rows():
    return (np.random.default_rng(0).normal(size=(1003, 7)) + 2).astype(np.float32)


@pytest.fixture(scope="module")
def on_disk(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("shards") / "rows.npy"
    np.save(path, rows)
    return np.load(path, mmap_mode="r")


def assert_same(one, other):
    assert one.count == other.count
    for name in ("mean", "scatter", "third", "fourth"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-10, atol=1e-9)


def test_processes_find_what_one_finds_in_a_slice_of_a_memmap_where_it_lies(rows, on_disk):
    found = Moments.from_vectors(on_disk[100:903], processes=2, block_rows=64)
    assert_same(found, Moments.from_vectors(rows[100:903]))


def test_the_fast_mode_is_passed_on(rows, on_disk, monkeypatch):
    monkeypatch.setattr("transforms.shards.shard_moments", lambda *given: shard_moments(*given[:-1], processes=1))
    found = Moments.from_vectors(on_disk, processes=2, precision="float32")
    expected, exact = (Moments.from_vectors(rows, precision=precision) for precision in ("float32", "float64"))
    np.testing.assert_array_equal(found.scatter, expected.scatter)
    assert 0 < np.abs(found.covariance() - exact.covariance()).max() < 1e-5


def test_a_row_that_is_not_finite_is_named_by_its_place_in_the_whole(rows, tmp_path):
    bad = rows.astype(np.float16)
    bad[777, 3] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    with pytest.raises(InputError, match="row 777 "):
        Moments.from_vectors(np.load(tmp_path / "bad.npy", mmap_mode="r"), processes=2)


def test_what_is_no_memmap_in_row_order_is_refused(rows, on_disk):
    for vectors in (rows, on_disk[:, ::2], on_disk.T):
        with pytest.raises(InputError, match="read a memmap in row order"):
            Moments.from_vectors(vectors, processes=2)


def test_a_file_that_went_away_is_an_error_and_not_a_wait(rows, tmp_path):
    np.save(tmp_path / "rows.npy", rows)
    on_disk = np.load(tmp_path / "rows.npy", mmap_mode="r")
    (tmp_path / "rows.npy").unlink()
    with pytest.raises(OSError, match="a process that computes moments failed: .*No such file"):
        list(shard_moments(on_disk, 4096, "float64", processes=1))
