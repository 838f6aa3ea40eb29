import gc
import warnings
from decimal import Decimal

import numpy as np
import pyarrow.parquet
import pytest

from lathe.training.errors import SourceError
from lathe.training.sources.source import open_source
from lathe.training.sources.writers import FIELD, WRITERS, open_writer

VECTORS = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
RECORDS = [{"id": number, "text": f"text {number} é", "tags": ["a", str(number)]} for number in range(7)]
EVERY = pytest.mark.parametrize("suffix", sorted(WRITERS))


def write(path, records=RECORDS, vectors=VECTORS, rows=3):
    with open_writer(path) as writer:
        for start in range(0, len(records), rows):
            writer.write(records[start : start + rows], vectors[start : start + rows])


def read(path):
    """Return vectors and other fields of a written file, as a source reads them."""
    batches = list(open_source(f"{path}#{FIELD}").batches(4))
    records = [record for batch in batches for record in batch.records]
    return np.concatenate([batch.values for batch in batches]), [
        {name: value for name, value in record.items() if name != FIELD} for record in records
    ]


@EVERY
def test_written_vectors_of_any_memory_layout_and_records_are_read_back_as_a_source(tmp_path, suffix):
    path, every_other = tmp_path / f"out{suffix}", np.repeat(VECTORS, 2, axis=1)[:, ::2]
    for rows, given in ((1, VECTORS), (3, np.asfortranarray(VECTORS)), (7, every_other)):
        write(path, vectors=given, rows=rows)
        vectors, records = read(path)
        np.testing.assert_array_equal(vectors, VECTORS)
        assert records == ([] if suffix == ".npy" else RECORDS)


@EVERY
def test_a_writer_without_rows_writes_a_file_of_zero_rows(tmp_path, suffix):
    with open_writer(tmp_path / f"out{suffix}"):
        pass
    assert open_source(str(tmp_path / f"out{suffix}")).files
    count = {
        ".jsonl": lambda path: len(path.read_bytes()),
        ".npy": lambda path: len(np.load(path)),
        ".parquet": lambda path: pyarrow.parquet.read_metadata(path).num_rows,
    }[suffix]
    assert count(tmp_path / f"out{suffix}") == 0


@EVERY
def test_empty_batches_add_no_rows_and_the_file_exists_only_after_the_writer_is_closed(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    write(tmp_path / "whole.npy")
    with open_writer(path) as writer:
        writer.write([], VECTORS[:0])
        writer.write(RECORDS, VECTORS)
        writer.write([], VECTORS[:0])
        assert not path.exists()
        assert open_source(str(tmp_path)).files == (str(tmp_path / "whole.npy"),), "what is being written is not read"
    np.testing.assert_array_equal(read(path)[0], VECTORS)


@EVERY
def test_a_writer_leaves_what_was_there_after_an_error_and_no_file_open(tmp_path, suffix):
    path, before = tmp_path / f"out{suffix}", None
    for existing in (False, True):
        if existing:
            write(path)
            before = path.read_bytes()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(KeyError), open_writer(path) as writer:
                writer.write(RECORDS[:2], VECTORS[:2])
                raise KeyError
            del writer
            gc.collect()
        assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []
        assert list(tmp_path.iterdir()) == ([path] if existing else [])
    assert path.read_bytes() == before


def test_open_writer_refuses_an_unknown_suffix_and_lists_the_known_ones(tmp_path):
    for name in ("out.csv", "out", "out.jsonl.gz"):
        with pytest.raises(SourceError, match=r"\.jsonl, \.parquet, \.npy"), open_writer(tmp_path / name):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_may_lack_a_field_that_others_have(tmp_path, suffix):
    records = [{"id": 1, "title": "a"}, {"id": 2}, {"id": 3, "title": "c"}]
    write(tmp_path / f"out{suffix}", records, VECTORS[:3])
    vectors, read_records = read(tmp_path / f"out{suffix}")
    np.testing.assert_array_equal(vectors, VECTORS[:3])
    assert [record.get("title") for record in read_records] == ["a", None, "c"]


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (None, "a"),
        (1, 2.5),
        ([], [1]),
        ([None], [{"a": 1}]),
        (Decimal("1.50"), Decimal("12345678901234567890.125")),
        (2**63, 1),
        (1, 2**63),
        ({"a": 1}, {"a": 0.5, "b": "x"}),
        ([1], [2.5, None]),
        pytest.param(..., [1], id="column that begins later"),
    ],
    ids=repr,
)
def test_a_parquet_column_takes_the_type_that_holds_its_later_values_too(tmp_path, first, later):
    records = [{"id": 1} if first is ... else {"id": 1, "note": first}] + [{"id": 2, "note": later}, {"id": 3}]
    write(tmp_path / "out.parquet", records, VECTORS[:3], rows=1)
    vectors, rows = read(tmp_path / "out.parquet")
    np.testing.assert_array_equal(vectors, VECTORS[:3])
    assert [row["id"] for row in rows] == [1, 2, 3]
    first = {"a": 1, "b": None} if first == {"a": 1} else None if first is ... else first
    assert [row["note"] for row in rows] == [first, later, None]
    assert list(tmp_path.iterdir()) == [tmp_path / "out.parquet"]


@pytest.mark.parametrize(
    ("first", "later"), [(1, "a"), (1.5, 2**53 + 1), (-1, 2**63), ({}, {"a": 1}), (True, 2), ("a", [])], ids=repr
)
def test_a_parquet_column_without_such_a_type_is_refused_by_name(tmp_path, first, later):
    with pytest.raises(SourceError, match=r"note.*write \.jsonl instead"):
        write(tmp_path / "out.parquet", [{"note": first}, {"note": later}], VECTORS[:2], rows=1)
    assert list(tmp_path.iterdir()) == []


def nanoseconds(zone=None):
    return pyarrow.timestamp("ns", zone)


COLUMNS = {
    "nulls first": pyarrow.array([None] * 2 + ["a"] * 5),
    "always null": pyarrow.nulls(7),
    "empty lists first": pyarrow.array([[]] * 2 + [[1]] * 5, pyarrow.list_(pyarrow.int16())),
    "short decimals first": pyarrow.array([Decimal("1.50")] * 2 + [Decimal("999.99")] * 5, pyarrow.decimal128(5, 2)),
    "uint64": pyarrow.array([1] * 2 + [2**64 - 1] * 5, pyarrow.uint64()),
    "map": pyarrow.array([[("k", 1)]] * 7, pyarrow.map_(pyarrow.string(), pyarrow.int8())),
    "nanoseconds": pyarrow.array([1_700_000_000_123_456_789] * 7, nanoseconds("Europe/Berlin")),
    "nested nanoseconds": pyarrow.array([[1_700_000_000_123_456_789]] * 7, pyarrow.list_(nanoseconds())),
    "dictionary": pyarrow.array(list("aabbcca")).dictionary_encode(),
    "struct": pyarrow.array([{"a": {}}] * 7, pyarrow.struct([("a", pyarrow.struct([("b", pyarrow.int8())]))])),
    "large text": pyarrow.array(["a"] * 7, pyarrow.large_string()),
    "texts": pyarrow.array([["a"]] * 7, pyarrow.list_(pyarrow.string())),
    "bytes": pyarrow.array([b"\xff"] * 7),
    "uuid": pyarrow.array([bytes(16)] * 7, pyarrow.uuid()),
    "half": pyarrow.array([0.5] * 7, pyarrow.float16()),
}


@pytest.mark.parametrize("of_texts", [True, False], ids=["texts", "vectors"])
def test_columns_of_a_parquet_source_keep_their_types_and_values(tmp_path, of_texts):
    values = pyarrow.array(["a text"] * 7) if of_texts else pyarrow.array(VECTORS.tolist())
    table = pyarrow.table({"text": values, "embedding": [0] * 7} | COLUMNS)
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet", row_group_size=3)
    with open_writer(tmp_path / "out.parquet") as writer:
        for batch in open_source(f"{tmp_path / 'in.parquet'}#text").batches(2):
            writer.write(batch.records if of_texts else batch.records.without("text"), VECTORS[: len(batch)])
    written = pyarrow.parquet.read_table(tmp_path / "out.parquet").drop_columns(["embedding"])
    expected = table.drop_columns(["embedding"] if of_texts else ["embedding", "text"])
    assert written.schema.equals(expected.schema) and written.equals(expected)


def test_columns_of_a_parquet_source_are_written_to_json_lines(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a text"] * 7} | COLUMNS), tmp_path / "in.parquet")
    with open_writer(tmp_path / "out.jsonl") as writer:
        for batch in open_source(f"{tmp_path / 'in.parquet'}#text").batches():
            writer.write(batch.records, VECTORS)
    row = read(tmp_path / "out.jsonl")[1][-1]
    assert (row["uint64"], row["short decimals first"], row["map"]) == (2**64 - 1, "999.99", [["k", 1]])
    assert row["nanoseconds"] == "2023-11-14T22:13:20.123456789Z"
    assert row["nested nanoseconds"] == ["2023-11-14 22:13:20.123456789"]
