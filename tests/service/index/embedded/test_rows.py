import hashlib
import resource
from types import SimpleNamespace

import numpy as np
import pytest

from lathe.service.index.embedded.rows import MIN_ROWS, GenerationRows, RowFile

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


@pytest.mark.parametrize("sizes", [[10, 1, 5], [MIN_ROWS, 1], [5000, 3000], [0, 3, 0]])
def test_take_view_shows_all_appended_rows_however_the_files_grow(rows, sizes):
    given, first = [], 1
    for seed, size in enumerate(sizes):
        given.append(batch(size, first, seed))
        rows.append(*given[-1])
        first += 3 * size
        assert_holds(rows.take_view(), joined(*given))
    assert rows.take_view().alive.all() and rows.take_view().count == rows.count == sum(sizes)
    assert rows.bytes == sum(sizes) * (8 + 2 * WIDTH + 4 * DIMENSIONS)


def test_a_view_is_unchanged_by_later_appends(tmp_path):
    rows = GenerationRows(tmp_path, WIDTH, FLOATS)
    first = batch(100)
    rows.append(*first)
    view = rows.take_view()
    rows.append(*batch(5000, first=1000, seed=1))
    assert view.count == 100
    assert_holds(view, first)


def test_find_rows_returns_row_numbers_and_leaves_out_unknown_labels(rows):
    view = rows.take_view()
    assert view.count == rows.count == rows.bytes == 0
    assert view.find_rows(np.array([1, 2])).tolist() == []
    rows.append(*batch(50, first=10))
    view = rows.take_view()
    assert view.find_rows(view.labels).tolist() == list(range(50))
    assert view.find_rows(np.array([157, 11, 10, 0, 999, 13, 160])).tolist() == [49, 0, 1]
    assert view.find_rows(np.empty(0, np.int64)).tolist() == []


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


def test_reopened_files_have_the_appended_rows(tmp_path):
    given = batch(2000)
    rows = GenerationRows(tmp_path, WIDTH, FLOATS)
    rows.append(*given)
    rows.sync()
    again = GenerationRows(tmp_path, WIDTH, FLOATS)
    assert again.count == 0
    again.count = 2000
    assert_holds(again.take_view(), given)
    again.append(*batch(2000, first=10_000, seed=1))
    assert_holds(again.take_view(), joined(given, batch(2000, first=10_000, seed=1)))


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


def test_compute_digests_equals_sha256_of_the_first_rows_and_a_file_that_became_shorter_raises(rows, tmp_path):
    given = [batch(300, first=1 + 900 * seed, seed=seed) for seed in range(4)]
    for part in given:
        rows.append(*part)
    whole = joined(*given)
    for count in (1, 0, 300, 301, 1200, 7, 900):
        expected = [hashlib.sha256(array[:count].tobytes()).hexdigest() for array in whole]
        assert list(rows.compute_digests(count, block_bytes=1000).values()) == expected
    assert list(rows.compute_digests(3)) == ["labels.i64", "originals.f16", "reduced.f32"]
    file = RowFile(tmp_path / "rows", "float32", 256)
    (tmp_path / "rows").write_bytes(b"")
    with pytest.raises(OSError, match="shorter"):
        file.compute_digest(10)


@pytest.mark.parametrize("scattered", [True, False])
def test_rows_written_through_the_map_are_in_the_file_however_it_is_read(tmp_path, scattered):
    file, given = RowFile(tmp_path / "rows", "float32", 3, scattered), np.arange(9000, dtype=np.float32).reshape(-1, 3)
    file.reserve(3000)
    file.array[:3000] = given
    assert file.compute_digest(3000) == hashlib.sha256(given.tobytes()).hexdigest()
    file.sync()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "rows", np.float32).reshape(-1, 3)[:3000], given)
    np.testing.assert_array_equal(file.array[:3000], given)


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
