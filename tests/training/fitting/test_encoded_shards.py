"""Shards encoded separately, in any order and after a kill, equal the source encoded at once."""

import gzip
import json
import os
import random
from dataclasses import asdict
from pathlib import Path

import faiss
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from lathe.training.errors import SourceError
from lathe.training.fitting.encoded_shards import encode_shard, shard_folder
from lathe.training.fitting.encoding import encode_source
from lathe.training.fitting.stacked import StackedVectors, VectorFile
from lathe.training.sources.rows import Span
from lathe.training.sources.shards import (
    BATCH_ROWS,
    FILE_SHARDS,
    SHARD_BATCHES,
    Shard,
    merge_into_shard_spans,
    read_shards,
)
from lathe.training.sources.source import open_source
from lathe.transforms.progress import no_progress

ROWS = (FILE_SHARDS + 2) * BATCH_ROWS + 300
SHARD_ROWS = 2 * BATCH_ROWS
"""Of the shards of so many."""
LINES = [line for row in range(ROWS) for line in ([f"row {row}"] if row % 7 else ["", f"row {row}", " "])]
"""Blank ones among them."""


def as_json(line):
    return json.dumps({"id": line, "text": line}) if line.strip() else line


def write(path):
    """Write a file of `ROWS` rows in the format of its name and return its path."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((ROWS, 3)).astype(np.float16)
    match path.name.partition(".")[2]:
        case "npy":
            np.save(path, vectors)
        case "columns.npy":
            np.save(path, np.asfortranarray(vectors.astype(np.float64)))
        case "jsonl":
            path.write_text("\n".join(as_json(line) for line in LINES))
        case "jsonl.gz":
            path.write_bytes(gzip.compress("\n".join(as_json(line) for line in LINES).encode(), 1))
        case "txt":
            path.write_text("\r\n".join(LINES))
        case "parquet":
            table = pyarrow.table({"text": [f"row {row}" for row in range(ROWS)], "id": range(ROWS)})
            pyarrow.parquet.write_table(table, path, row_group_size=9_000)
        case "faiss":
            index = faiss.IndexIDMap2(faiss.IndexFlatIP(3))
            index.add_with_ids(vectors.astype(np.float32), np.arange(ROWS) + 7)
            faiss.write_index(index, str(path))
    return str(path)


@pytest.mark.parametrize("name", ["npy", "columns.npy", "jsonl", "jsonl.gz", "txt", "parquet", "faiss"])
def test_batches_of_separately_read_shards_equal_those_of_the_source(tmp_path, name):
    source = open_source(write(tmp_path / f"a.{name}"))
    shards = [Shard(**json.loads(json.dumps(asdict(shard)))) for shard in source.plan().shards]
    assert {shard.rows for shard in shards[:-1]} == {SHARD_ROWS}
    assert [shards[-1].rows, sum(shard.rows for shard in shards)] == [ROWS % SHARD_ROWS, ROWS]
    apart = [batch for shard in shards for batch in read_shards(Path(shard.file), shard, shard, source.field)]
    whole = list(source.batches())
    assert [len(batch) for batch in apart] == [len(batch) for batch in whole]
    for one, other in zip(apart, whole, strict=True):
        np.testing.assert_array_equal(one.values, other.values)
        assert list(one.records) == list(other.records)


@pytest.mark.parametrize(
    ("batches", "shards", "largest"),
    [
        (0, 0, 0),
        (1, 1, 1),
        (2, 2, 1),
        (FILE_SHARDS, FILE_SHARDS, 1),
        (FILE_SHARDS + 1, 17, 2),
        (10_000, 157, SHARD_BATCHES),
    ],
)
def test_merge_into_shard_spans_makes_single_batches_of_small_files_and_larger_shards_of_large(
    batches, shards, largest
):
    found = merge_into_shard_spans([Span(start=row, stop=row + 1, byte=5 * row, line=row) for row in range(batches)])
    assert len(found) == shards
    assert max((span.rows for span in found), default=0) == largest
    assert [span.start for span in found[1:]] == [span.stop for span in found[:-1]]
    assert all(span.byte == 5 * span.start for span in found)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_an_error_in_a_later_shard_names_the_line_of_the_file(tmp_path, name):
    lines = [as_json(line) for line in LINES]
    bad = len(lines) - 5
    lines[bad] = '{"text": 1}'
    payload = "\n".join(lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(payload, 1) if name.endswith("gz") else payload)
    shard = open_source(str(tmp_path / name)).plan().shards[-1]
    with pytest.raises(SourceError, match=rf"^{name} line {bad + 1}: 'text' is 1, neither"):
        list(read_shards(tmp_path / name, shard, shard, "text"))


@pytest.fixture(scope="module")
def folder_of_files(tmp_path_factory):
    """Write three files, one of which is cut into many shards, and return their folder."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "a.jsonl").write_text("\n".join(as_json(f"first {row}") for row in range(1500)))
    write(folder / "b.jsonl.gz")
    pyarrow.parquet.write_table(pyarrow.table({"text": [f"last {row}" for row in range(10)]}), folder / "c.parquet")
    return str(folder)


def read_all_files(folder):
    """Return the contents of all files below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def encode(written, encoder, folder):
    return encode_source(open_source(written), encoder, folder, no_progress)


def test_shards_encoded_separately_in_any_order_equal_the_encoded_source(folder_of_files, counting_hashes, tmp_path):
    whole = encode(folder_of_files, counting_hashes(), tmp_path / "whole")
    source, encoder = open_source(folder_of_files), counting_hashes()
    shards = source.plan().shards
    assert len(shards) == 2 + 18 + 1
    for shard in random.Random(0).sample(shards, len(shards)):
        folder = shard_folder(tmp_path / "apart", shard, source.field, encoder)
        assert encode_shard(shard, source.field, encoder, folder).rows == shard.rows
    assert read_all_files(tmp_path / "apart") == read_all_files(tmp_path / "whole")
    again = counting_hashes()
    joined = encode(folder_of_files, again, tmp_path / "apart")
    assert again.calls == 0
    assert joined.digest == whole.digest
    np.testing.assert_array_equal(joined.vectors, np.asarray(whole.vectors))


def test_a_shard_encoded_before_is_not_encoded_again(folder_of_files, counting_hashes, tmp_path):
    source, encoder = open_source(folder_of_files), counting_hashes()
    last = source.plan().shards[2]
    encode_shard(last, "text", encoder, shard_folder(tmp_path / "work", last, "text", encoder))
    encoder.texts.clear()
    encode(folder_of_files, encoder, tmp_path / "work")
    assert len(encoder.texts) == 1500 + ROWS - SHARD_ROWS + 10


def test_an_encoding_stopped_within_a_shard_resumes_at_its_next_batch_with_equal_files(
    folder_of_files, counting_hashes, stopped, tmp_path
):
    first, second = counting_hashes(), counting_hashes()
    first.stop_before_call = 3  # after both batches of one shard and the first of two of the next
    with pytest.raises(stopped):
        encode(folder_of_files, first, tmp_path / "work")
    encode(folder_of_files, second, tmp_path / "work")
    assert second.texts[0] == "row 1024" and len(first.texts + second.texts) == 1500 + ROWS + 10
    encode(folder_of_files, counting_hashes(), tmp_path / "whole")
    assert read_all_files(tmp_path / "work") == read_all_files(tmp_path / "whole")


def test_only_a_file_added_to_a_folder_is_encoded_and_the_workspace_key_stays(counting_hashes, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "b.txt").write_text("one\ntwo")
    before = open_source(str(texts)).workspace_key(counting_hashes().fingerprint)
    encode(str(texts), counting_hashes(), tmp_path / "work")
    (texts / "a.txt").write_text("three")
    encoder = counting_hashes()
    encoded = encode(str(texts), encoder, tmp_path / "work")
    assert encoder.texts == ["three"]
    np.testing.assert_array_equal(encoded.vectors, encoder.encode(["three", "one", "two"]).vectors)
    assert open_source(f"{texts}/").workspace_key(encoder.fingerprint) == before
    assert open_source(f"{texts}#body").workspace_key(encoder.fingerprint) != before


def test_the_workspace_key_of_a_single_file_depends_on_its_content_and_not_its_folder(counting_hashes, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "source.txt").write_text("the same")
    one, two = (open_source(str(tmp_path / name / "source.txt")).workspace_key(None) for name in ("one", "two"))
    assert one == two
    (tmp_path / "two" / "source.txt").write_text("changed!")
    assert open_source(str(tmp_path / "two" / "source.txt")).workspace_key(None) != one


@pytest.fixture
def stacked(tmp_path):
    """Return stacked parts of several sizes, and the rows that they hold."""
    rows = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    parts, start = [], 0
    for number, size in enumerate((1, 20, 3, 36)):
        rows[start : start + size].tofile(tmp_path / str(number))
        parts.append(VectorFile(tmp_path / str(number), size))
        start += size
    return StackedVectors(parts, 4), rows


def test_stacked_indexes_like_one_array(stacked):
    vectors, rows = stacked
    assert (vectors.shape, len(vectors), vectors.dtype) == (rows.shape, 60, rows.dtype)
    for chosen in (
        slice(None), slice(0, 1), slice(5, 5), slice(19, 25), slice(-3, None), slice(50, 900), slice(None, None, 7),
        slice(None, None, -1), 0, -1, 23, np.arange(60)[::-1], np.array([59, 0, 20, 20, 21]), np.array([-1, -60]),
        np.array([], np.int64), np.arange(60) % 3 == 0, [1, 2, 40],
    ):  # fmt: skip
        found = vectors[chosen]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, rows[chosen], err_msg=str(chosen))


def test_the_vectors_of_300_files_are_read_with_at_most_256_open_files(tmp_path):
    """Each memmap holds a file open, and a process may have 1,024 on many systems."""
    for number in range(300):
        np.save(tmp_path / f"{number:03}.npy", np.full((2, 3), number, np.float32))
    encoded = encode(str(tmp_path), None, tmp_path / "work")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    np.testing.assert_array_equal(encoded.vectors, np.repeat(np.arange(300), 2)[:, None].repeat(3, 1))
    assert len(os.listdir("/proc/self/fd")) - before <= 256  # noqa: PTH208
