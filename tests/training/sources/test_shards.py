"""Damaged and empty files of a source: refused with their names, or skipped with the reason."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from lathe.training.errors import AccessError, FitError, SourceError
from lathe.training.fitting.fit import fit_new_chain
from lathe.training.fitting.requests import NewFit
from lathe.training.sources.shards import BATCH_ROWS
from lathe.training.sources.source import open_source
from lathe.transforms.progress import no_progress

WIDTH = 6
GOOD = 80
LATE = BATCH_ROWS + 5
"""A row of a file's second shard."""


def vectors(rows=GOOD, width=WIDTH, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def as_npy(path, rows):
    np.save(path, rows)


def truncated(path):
    as_npy(path, vectors())
    path.write_bytes(path.read_bytes()[:-9])


def archive(path):
    with path.open("wb") as file:
        np.savez(file, vectors())


def header_lost(path):
    path.write_bytes(b"\x93NUMPY but nothing else")


def not_finite(path):
    rows = vectors(LATE + 10)
    rows[LATE, 2] = np.nan
    as_npy(path, rows)


def bad_line(path):
    lines = [json.dumps({"text": row}) for row in vectors().tolist()]
    lines[33] = lines[33][:-2]
    path.write_text("\n".join(lines))


def cut_gzip(path):
    packed = gzip.compress("\n".join(json.dumps({"text": row}) for row in vectors().tolist()).encode())
    path.write_bytes(packed[: len(packed) // 2])


def damaged_pages(path):
    pyarrow.parquet.write_table(pyarrow.table({"text": vectors(5000).tolist()}), path)
    payload = path.read_bytes()
    path.write_bytes(payload[:200] + np.random.default_rng(0).bytes(4000) + payload[4200:])


def no_column(path):
    pyarrow.parquet.write_table(pyarrow.table({"other": vectors().tolist()}), path)


DAMAGE = {
    "truncated": ("b.npy", truncated, "not a .npy file"),
    "header lost": ("b.npy", header_lost, "not a .npy file"),
    "nan in its second shard": ("b.npy", not_finite, f"row {LATE + 1}: NaN"),
    "other width": (
        "b.npy",
        lambda path: as_npy(path, vectors(width=WIDTH + 1)),
        "vectors of 7 dimensions in a source",
    ),
    "whole numbers": ("b.npy", lambda path: as_npy(path, np.ones((9, WIDTH), np.int64)), "must hold floats"),
    "texts": (
        "b.jsonl",
        lambda path: path.write_text('{"text": "a text"}'),
        "texts in a source of vectors of 6 dimensions",
    ),
    "bad line": ("b.jsonl", bad_line, "line 34: not JSON"),
    "no field": ("b.jsonl", lambda path: path.write_text('{"body": [1, 2]}'), "line 1: no field 'text'"),
    "cut gzip": ("b.jsonl.gz", cut_gzip, "cannot be read"),
    "damaged pages": ("b.parquet", damaged_pages, "cannot be read after row"),
    "no column": ("b.parquet", no_column, "has no column 'text'"),
    "an archive": ("b.npy", archive, "not a .npy file"),
    "an empty file": ("b.npy", Path.touch, "not a .npy file"),
    "no gzip": ("b.jsonl.gz", lambda path: path.write_bytes(b'{"text": [1, 2]}'), "cannot be read"),
    "no parquet": ("b.parquet", lambda path: path.write_bytes(b"PAR1 but nothing else of it"), "not a parquet file"),
}


@pytest.fixture
def folder(tmp_path):
    """Write two good files, with room for another between them by name, and return their folder."""
    root = tmp_path / "files"
    root.mkdir()
    as_npy(root / "a.npy", vectors(seed=1))
    as_npy(root / "c.npy", vectors(seed=2))
    return root


def fit(source, workspace, encoder=None, steps=({"kind": "r2"},), **request):
    """Fit a chain and return its certificate, its provenance and all vectors."""
    with fit_new_chain(
        NewFit(name="x", steps=list(steps), source=str(source), **request), encoder, workspace, no_progress
    ) as fitted:
        return fitted.certificate, fitted.chain.metadata["provenance"], np.array(fitted.encoded.vectors)


@pytest.mark.parametrize(("name", "make", "reason"), DAMAGE.values(), ids=DAMAGE)
def test_fit_refuses_a_damaged_file_or_skips_it_whole_and_reports_its_name_and_the_reason(
    folder, tmp_path, name, make, reason
):
    """With `bad_shards="skip"`, certificate and provenance name the file without its folder's path."""
    make(folder / name)
    with pytest.raises(SourceError) as caught:
        fit(folder, tmp_path / "work")
    assert str(caught.value).startswith(name) and reason in str(caught.value)
    certificate, provenance, found = fit(folder, tmp_path / "work", bad_shards="skip")
    np.testing.assert_array_equal(found, np.concatenate([vectors(seed=1), vectors(seed=2)]))
    (warning,) = [warning for warning in certificate["warnings"] if "left out" in warning]
    assert warning.startswith(f"{name} was left out: ") and reason in warning
    assert list(provenance["left_out"]) == [name] and reason in provenance["left_out"][name]
    assert str(tmp_path) not in json.dumps([certificate, provenance])


@pytest.mark.parametrize("make", [truncated, not_finite])
def test_a_skipped_first_file_does_not_set_the_dimensions_of_the_source(tmp_path, make):
    """The other files are kept although they have other dimensions, even if the damage is found only while encoding."""
    (tmp_path / "files" / "day").mkdir(parents=True)
    make(tmp_path / "files" / "a.npy")
    for name in ("b", "c"):
        as_npy(tmp_path / "files" / "day" / f"{name}.npy", vectors(width=WIDTH + 2))
    _, provenance, found = fit(tmp_path / "files", tmp_path / "work", bad_shards="skip")
    assert list(provenance["left_out"]) == ["a.npy"]
    assert found.shape == (2 * GOOD, WIDTH + 2)


def test_files_unlike_the_majority_of_rows_in_kind_or_dimensions_are_skipped(folder, tmp_path):
    as_npy(folder / "0.npy", vectors(rows=9, width=WIDTH + 1))
    (folder / "1.jsonl").write_text('{"text": "a text"}')
    assert open_source(str(folder), "skip").detect_kind() == WIDTH
    certificate, provenance, found = fit(folder, tmp_path / "work", bad_shards="skip")
    np.testing.assert_array_equal(found, np.concatenate([vectors(seed=1), vectors(seed=2)]))
    assert list(provenance["left_out"]) == ["0.npy", "1.jsonl"]
    assert (
        f"0.npy was left out: vectors of 7 dimensions in a source of vectors of {WIDTH} dimensions"
        in certificate["warnings"]
    )


def test_a_source_with_all_files_damaged_raises_source_error(tmp_path):
    (tmp_path / "files").mkdir()
    truncated(tmp_path / "files" / "a.npy")
    header_lost(tmp_path / "files" / "b.npy")
    with pytest.raises(SourceError, match=r"no file of files can be used; the first is a\.npy: a\.npy is not a \.npy"):
        fit(tmp_path / "files", tmp_path / "work", bad_shards="skip")
    not_finite(tmp_path / "files" / "a.npy")
    with pytest.raises(SourceError, match=r"no file of files can be used; the first is .*"):
        fit(tmp_path / "files", tmp_path / "work", bad_shards="skip")


def test_files_of_float16_float32_and_float64_make_one_source_in_float32(folder, tmp_path):
    half, double = vectors(seed=3).astype(np.float16), vectors(seed=4).astype(np.float64)
    as_npy(folder / "d.npy", half)
    as_npy(folder / "e.npy", double)
    _, _, found = fit(folder, tmp_path / "work")
    expected = [vectors(seed=1), vectors(seed=2), half.astype(np.float32), double.astype(np.float32)]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.concatenate(expected))


@pytest.mark.parametrize("policy", ["refuse", "skip"])
def test_files_without_rows_are_named_in_a_warning_and_do_not_count_as_damaged(folder, tmp_path, policy):
    as_npy(folder / "0.npy", vectors(0, WIDTH + 5))
    (folder / "d.jsonl").write_text("\n \n")
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), folder / "e.parquet")
    certificate, provenance, found = fit(folder, tmp_path / "work", bad_shards=policy)
    assert {"0.npy holds no rows", "d.jsonl holds no rows", "e.parquet holds no rows"} <= set(certificate["warnings"])
    assert provenance["left_out"] == {} and len(found) == 2 * GOOD


def test_a_missing_package_raises_access_error_even_if_damaged_files_are_skipped(folder, tmp_path, monkeypatch):
    no_column(folder / "b.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(AccessError, match="pip install 'lathe-training\\[parquet\\]'"):
        fit(folder, tmp_path / "work", bad_shards="skip")


def test_vectors_of_other_dimensions_than_the_encoders_raise_fit_error_and_are_not_skipped(
    folder, counting_hashes, tmp_path
):
    with pytest.raises(FitError, match="6 dimensions, and hashing has 16"):
        fit(folder, tmp_path / "work", counting_hashes(), bad_shards="skip")


def test_fit_on_pairs_is_refused_if_a_file_of_the_source_was_skipped(folder, tmp_path):
    truncated(folder / "b.npy")
    as_npy(tmp_path / "targets.npy", vectors(2 * GOOD))
    with pytest.raises(FitError, match=r"b\.npy of the source was left out: .* no longer match the targets"):
        fit(
            folder, tmp_path / "work", steps=[{"kind": "procrustes"}], targets=str(tmp_path / "targets.npy"),
            bad_shards="skip",
        )  # fmt: skip
