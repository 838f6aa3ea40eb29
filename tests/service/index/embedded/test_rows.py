import resource
from types import SimpleNamespace

import numpy as np
import pytest

from lathe.service.index.embedded.rows import GenerationRows, RowFile

WIDTH, DIMENSIONS = 12, 8
FLOATS = SimpleNamespace(file_name="reduced.f32", dtype="float32", width=DIMENSIONS)


@pytest.fixture
def rows(tmp_path):
    return GenerationRows(tmp_path, WIDTH, FLOATS)


def batch(count, first=1, seed=0, step=3):
    """Draw labels, originals and compact vectors of some rows."""
    draw = np.random.default_rng(seed)
    labels = np.arange(first, first + step * count, step, dtype=np.int64)
    reduced = draw.normal(size=(count, DIMENSIONS)).astype(np.float32)
    return labels, draw.normal(size=(count, WIDTH)).astype(np.float16), reduced


def assert_holds(view, given):
    """Assert that a view equals labels, originals and compact vectors."""
    for seen, expected in zip((view.labels, view.originals, view.compact), given, strict=True):
        np.testing.assert_array_equal(seen, expected)


def joined(*batches):
    """Concatenate batches."""
    return tuple(np.concatenate(parts) for parts in zip(*batches, strict=True))


def test_mark_dead_counts_each_row_once_and_leaves_out_unknown_labels(rows):
    rows.append(*batch(20))
    for _ in range(2):
        rows.mark_dead(np.array([1, 7, 58, 5, 1000], np.int64))
    assert rows.dead == 3
    assert np.flatnonzero(~rows.take_view().alive).tolist() == [0, 2, 19]
    rows.append(*batch(3000, first=100, seed=1))
    assert np.flatnonzero(~rows.take_view().alive).tolist() == [0, 2, 19] and rows.count == 3020
    rows.mark_dead(np.arange(1, 58, 3))  # all that were there at first
    assert np.flatnonzero(~rows.take_view().alive).tolist() == list(range(20))


def test_files_that_were_deleted_or_replaced_take_no_more_rows(rows, tmp_path):
    rows.append(*batch(100))
    (tmp_path / "labels.i64").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        rows.append(*batch(5000, first=1000))
    (tmp_path / "labels.i64").write_bytes(bytes(8))
    with pytest.raises(OSError, match="replaced"):
        rows.append(*batch(5000, first=1000))
    assert rows.count == 100
    assert_holds(rows.take_view(), batch(100))


@pytest.mark.parametrize("missing", ["labels.i64", "reduced.f32"])
def test_rows_can_be_appended_to_files_of_unequal_length(tmp_path, missing):
    rows = GenerationRows(tmp_path, WIDTH, FLOATS)
    rows.append(*batch(5000))
    (tmp_path / missing).unlink()
    again = GenerationRows(tmp_path, WIDTH, FLOATS)
    for seed in range(3):
        again.append(*batch(900, first=1 + 2700 * seed, seed=seed))
    assert_holds(again.take_view(), joined(*(batch(900, first=1 + 2700 * seed, seed=seed) for seed in range(3))))
    assert len(again.take_view().alive) == 2700


def test_reserve_allocates_disk_blocks_and_rows_within_them_do_not_grow_the_files(rows, tmp_path):
    rows.reserve(3000)
    sizes = [file.stat().st_size for file in sorted(tmp_path.iterdir())]
    rows.append(*batch(3000))
    assert [file.stat().st_size for file in sorted(tmp_path.iterdir())] == sizes
    file = RowFile(tmp_path / "rows", "float32", 256)
    file.reserve(4096)
    status = (tmp_path / "rows").stat()
    assert status.st_size == 4096 * 1024 and status.st_blocks * 512 >= status.st_size


def test_appending_on_a_full_disk_raises_os_error_and_keeps_existing_rows(rows):
    given = batch(100)
    rows.append(*given)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        with pytest.raises(OSError):
            rows.reserve(200_000)
        with pytest.raises(OSError):
            rows.append(*batch(200_000, first=1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert rows.count == 100
    assert_holds(rows.take_view(), given)
    rows.append(*batch(5000, first=1000, seed=1))
    assert_holds(rows.take_view(), joined(given, batch(5000, first=1000, seed=1)))


@pytest.mark.parametrize("from_disk", [True, False])
def test_rows_of_a_file_are_read_by_their_numbers_whether_or_not_they_come_from_the_disk(tmp_path, from_disk):
    rows = np.random.default_rng(0).normal(size=(5000, WIDTH)).astype(np.float16)
    file = RowFile(tmp_path / "rows.f16", "float16", WIDTH, scattered=True)
    file.reserve(len(rows))
    file.array[: len(rows)] = rows
    for numbers in ([], [4999], [0, 0, 3, 1700], [4998, 2, 4999]):
        file.from_disk = from_disk
        wanted = np.array(numbers, np.int64)
        np.testing.assert_array_equal(file[wanted], rows[wanted])
