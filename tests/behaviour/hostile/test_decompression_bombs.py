"""Small files that would unpack to gigabytes are refused."""

import gzip
import resource
import struct

import faiss
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from lathe.training.errors import SourceError
from lathe.training.sources.rows import MAX_BATCH_BYTES
from lathe.training.sources.source import open_source

WIDE = 1_000_000


def one_huge_text(path):
    table = pyarrow.table({"text": ["a" * 200_000_000]})
    pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)


def one_text_again_and_again(path):
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 200, pyarrow.int32()), ["a" * 10_000_000])
    table = pyarrow.table({"text": column})
    pyarrow.parquet.write_table(table, path, compression="zstd", store_schema=False, write_statistics=False)


def wide_npy(path):
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (2000, WIDE)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 4 * 2000 * WIDE)


def packed_lines(path):
    line = b'{"text": "' + b"a" * 15_000_000 + b'"}\n'
    with gzip.open(path, "wb", 1) as file:
        for _ in range(MAX_BATCH_BYTES // len(line) + 2):
            file.write(line)


def faiss_index(path, mapped=False, rows=10, metric=faiss.METRIC_L2):
    index = faiss.IndexFlat(8, metric)
    if mapped:
        index = faiss.IndexIDMap2(index)
        index.add_with_ids(np.ones((rows, 8), np.float32), np.arange(rows))
    else:
        index.add(np.ones((rows, 8), np.float32))
    faiss.write_index(index, str(path))


def exaggerating_faiss(path, begins=0):
    content = bytearray(path.read_bytes())
    content[begins + 8 : begins + 16] = struct.pack("<q", 10**9)
    content[begins + 37 : begins + 45] = struct.pack("<Q", 8 * 10**9)
    path.write_bytes(content)


def flat_faiss(path):
    faiss_index(path)
    exaggerating_faiss(path)


def mapped_faiss(path):
    faiss_index(path, mapped=True)
    exaggerating_faiss(path, begins=37)


BOMBS = {
    "a.parquet": (one_huge_text, "at most 16,777,216 bytes a row"),
    "b.parquet": (one_text_again_and_again, "200 rows take 2,000,000,800 bytes, more than 1,073,741,824"),
    "a.npy": (wide_npy, "1,000,000 dimensions; at most 65,536"),
    "a.jsonl.gz": (packed_lines, "lines take more than 1,073,741,824 bytes"),
    "a.faiss": (flat_faiss, "truncated"),
    "b.faiss": (mapped_faiss, "truncated"),
}


def most_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


SLOW = ("b.parquet", "a.jsonl.gz")
"""A gigabyte of these is unpacked before they are refused."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.release] * (name in SLOW)) for name in BOMBS])
def test_a_small_file_that_unpacks_to_gigabytes_is_refused(tmp_path, name):
    make, message = BOMBS[name]
    make(tmp_path / name)
    with pytest.raises(SourceError, match=message):
        for batch in open_source(str(tmp_path / name)).batches():
            assert len(batch) <= 1024


@pytest.mark.parametrize("name", BOMBS)
def test_kind_of_a_small_file_that_unpacks_to_gigabytes_takes_under_50_megabytes(tmp_path, name):
    """The kind is found, or the file refused, without unpacking."""
    make, _ = BOMBS[name]
    if name != "a.jsonl.gz":  # of lines the first is read, which is bounded
        make(tmp_path / name)
        before = most_bytes()
        try:
            assert open_source(str(tmp_path / name)).kind() == "texts"
        except SourceError:
            assert not name.endswith("parquet")
        assert most_bytes() - before < 50_000_000
