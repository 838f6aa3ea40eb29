import gzip
import pickle
import re
from datetime import datetime
from pathlib import Path

import numpy as np
import orjson
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from lathe.training.errors import SourceError
from lathe.training.sources import parquet
from lathe.training.sources.readers import FORMATS
from lathe.training.sources.source import open_source

TEXTS = [
    "The first text.",
    "naïve café 東京 😀",
    'with "quotes" and \\ in it',
    "a line\u2028separator",
    "x",
    "The last.",
]
VECTORS = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float16).astype(np.float32)  # halves hold them
BAD = 1500
"""The row that is bad where there are several batches."""


def write_jsonl(path: Path, rows) -> str:
    """Write rows as JSON lines, bytes unchanged, and return the path."""
    payload = b"".join((row if isinstance(row, bytes) else orjson.dumps(row)) + b"\n" for row in rows)
    path.write_bytes(gzip.compress(payload) if path.suffix == ".gz" else payload)
    return str(path)


def write_parquet(path: Path, **columns) -> str:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return str(path)


def write_npy(path: Path, array) -> str:
    np.save(path, array)
    return str(path)


def read_texts(written: str, rows: int = 4) -> list[str]:
    return [text for batch in open_source(written).batches(rows) for text in batch.values]


def read_vectors(written: str, rows: int = 4):
    return np.concatenate([batch.values for batch in open_source(written).batches(rows)])


def read_error_message(written: str, rows: int = 1024) -> str:
    """Return the message of the `SourceError` that reading a source raises."""
    with pytest.raises(SourceError) as caught:
        list(open_source(written).batches(rows))
    return str(caught.value)


def names_row(message: str, row: int) -> bool:
    """Return whether a message names the row at an index by its number or line, from 1 on."""
    return bool(re.search(rf"\b(line|row) {row + 1}\b", message))


@pytest.fixture
def every_text_source(tmp_path_factory):
    """Write the same texts in every format that holds texts and return the sources."""
    tmp_path = tmp_path_factory.mktemp("texts")
    (tmp_path / "plain.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    (tmp_path / "packed.txt.gz").write_bytes(gzip.compress("\n".join(TEXTS).encode()))
    (tmp_path / "folder").mkdir()
    write_jsonl(tmp_path / "folder" / "a.jsonl", [{"text": text} for text in TEXTS[:2]])
    write_parquet(tmp_path / "folder" / "b.parquet", text=TEXTS[2:])
    return [
        write_jsonl(tmp_path / "rows.jsonl", [{"id": number, "text": text} for number, text in enumerate(TEXTS)]),
        write_jsonl(tmp_path / "rows.jsonl.gz", [{"text": text} for text in TEXTS]),
        write_jsonl(tmp_path / "named.jsonl", [{"text": 1, "body": text} for text in TEXTS]) + "#body",
        write_parquet(tmp_path / "rows.parquet", text=TEXTS),
        write_parquet(tmp_path / "named.parquet", text=[1] * len(TEXTS), body=TEXTS) + "#body",
        *(str(tmp_path / name) for name in ("plain.txt", "packed.txt.gz", "folder")),
    ]


@pytest.fixture
def every_vector_source(tmp_path_factory):
    """Write the same vectors in every format that holds vectors and return the sources."""
    tmp_path = tmp_path_factory.mktemp("vectors")
    lists = VECTORS.tolist()
    return [
        write_npy(tmp_path / "plain.npy", VECTORS),
        write_npy(tmp_path / "half.npy", VECTORS.astype(np.float16)),
        write_npy(tmp_path / "wide.npy", VECTORS.astype(np.float64)),
        write_npy(tmp_path / "big_endian.npy", VECTORS.astype(">f4")),
        write_npy(tmp_path / "columns_first.npy", np.asfortranarray(VECTORS)),
        write_jsonl(tmp_path / "rows.jsonl", [{"id": 1, "vector": row} for row in lists]) + "#vector",
        write_jsonl(tmp_path / "rows.jsonl.gz", [{"text": row} for row in lists]),
        write_parquet(tmp_path / "rows.parquet", vector=pyarrow.array(lists, pyarrow.list_(pyarrow.float32())))
        + "#vector",
    ]


def test_texts_are_read_from_every_format(every_text_source):
    for written in every_text_source:
        assert read_texts(written) == TEXTS, written
        assert open_source(written).kind() == "texts"


def test_vectors_are_read_from_every_format_as_float32(every_vector_source):
    for written in every_vector_source:
        read = read_vectors(written)
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, VECTORS, err_msg=written)
        assert open_source(written).kind() == "vectors"


def test_batches_have_at_most_the_given_rows_and_together_as_many_as_count(every_text_source, every_vector_source):
    for written in every_text_source + every_vector_source:
        for rows in (1, 2, 100):
            sizes = [len(batch) for batch in open_source(written).batches(rows)]
            assert 0 < min(sizes) <= max(sizes) <= rows
            assert sum(sizes) == open_source(written).count()


def test_text_lines_are_read_without_surrounding_white_space_and_blank_lines(tmp_path):
    (tmp_path / "dos.txt").write_bytes(b"one\r\n\r\n   \r\n  two \t\r\nthree")
    assert read_texts(str(tmp_path / "dos.txt")) == ["one", "two", "three"]
    assert open_source(str(tmp_path / "dos.txt")).count() == 3


def test_records_hold_all_fields_of_each_row_in_order(tmp_path):
    rows = [{"id": number, "text": text, "meta": {"n": [number]}} for number, text in enumerate(TEXTS)]
    from_jsonl = open_source(write_jsonl(tmp_path / "r.jsonl", rows)).batches(4)
    from_parquet = open_source(
        write_parquet(tmp_path / "r.parquet", **{name: [row[name] for row in rows] for name in rows[0]})
    ).batches(4)
    assert [record for batch in from_jsonl for record in batch.records] == rows
    assert [record for batch in from_parquet for record in batch.records] == rows


def test_a_folder_is_read_in_order_of_names_without_hidden_and_unknown_files_and_notes(tmp_path, caplog):
    """What is left out is logged once. Plain lines are rows where there is nothing else."""
    names = (
        "b/c.jsonl b/.partial.jsonl .cache/x.jsonl d.txt a.jsonl.gz README.md b/README.txt metadata.jsonl _ids.jsonl"
    )
    for name in names.split():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if ".jsonl" in name:
            write_jsonl(path, [{"text": name}])
        else:
            path.write_text(name)
    assert read_texts(str(tmp_path)) == read_texts(str(tmp_path)) == ["a.jsonl.gz", "b/c.jsonl"]
    (said,) = (record.getMessage() for record in caplog.records if "left out" in record.getMessage())
    assert said.endswith("left out _ids.jsonl, README.txt, d.txt, metadata.jsonl; name a file itself to read it")
    assert read_texts(str(tmp_path / "d.txt")) == ["d.txt"]
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "readme.txt").write_text("a\nb")
    assert read_texts(str(tmp_path / "texts")) == ["a", "b"]


def test_nulls_are_named_and_the_index_of_a_pandas_table_is_no_field(tmp_path):
    vectors = write_jsonl(tmp_path / "v.jsonl", [{"text": [0.1, 0.2]}, {"text": [0.1, None]}])
    assert read_error_message(vectors) == "v.jsonl line 2: the vector holds null at 1, which is not a number"
    assert "'text' is null" in read_error_message(write_jsonl(tmp_path / "t.jsonl", [{"text": None}]))
    pandas.DataFrame({"text": TEXTS[:2]}, index=["x", "y"]).to_parquet(tmp_path / "p.parquet")
    (batch,) = open_source(str(tmp_path / "p.parquet")).batches()
    assert list(batch.records) == [{"text": text} for text in TEXTS[:2]]


def test_a_null_among_the_texts_of_a_parquet_file_is_named_before_any_row_is_read(tmp_path):
    path, texts = tmp_path / "a.parquet", ["x"] * 5000
    texts[4321] = texts[4500] = None
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=1000)
    with pytest.raises(SourceError, match=r"a\.parquet row 4322: null in the column 'text', which holds texts"):
        next(open_source(str(path)).batches())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, write_statistics=False)
    assert read_error_message(str(path)) == "a.parquet row 4322: null in a source that began with texts"


def test_a_column_of_lists_of_texts_holds_neither_texts_nor_vectors(tmp_path):
    parquet_file = write_parquet(tmp_path / "a.parquet", text=[["a", "b"]])
    with pytest.raises(SourceError, match=r"the column 'text' holds list<\w+: string>, neither texts nor lists of num"):
        open_source(parquet_file).kind()
    for lines in (parquet_file, write_jsonl(tmp_path / "a.jsonl", [{"text": ["a", "b"]}])):
        assert "a list of 2 texts, neither a text nor a vector" in read_error_message(lines)


def test_a_hidden_folder_can_be_a_source(tmp_path):
    (tmp_path / ".data").mkdir()
    write_jsonl(tmp_path / ".data" / "a.jsonl", [{"text": "seen"}])
    assert read_texts(str(tmp_path / ".data")) == ["seen"]


def test_the_name_of_a_source_is_the_last_part_of_its_path(tmp_path, monkeypatch):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x"}])
    assert open_source(f"{path}#text").name == "a.jsonl"
    assert open_source(f"{tmp_path}/").name == tmp_path.name
    monkeypatch.chdir(tmp_path)
    assert open_source(".").name == tmp_path.name


def test_a_missing_field_is_refused_with_file_line_and_the_existing_fields(tmp_path):
    written = write_jsonl(tmp_path / "a.jsonl", [{"body": "x", "id": 1}, {"id": 2, "title": "y"}]) + "#body"
    assert re.match(r"a\.jsonl line 2: no field 'body'; it has id, title", read_error_message(written))


@pytest.mark.parametrize(
    ("line", "reason"),
    [(b'{"text": "z"', "not JSON"), ([1, 2], "")]
    + [({"text": value}, "'text' is ") for value in (None, 1, {"a": "b"})],
)
def test_a_line_that_is_no_object_with_a_text_is_refused_with_file_and_line(tmp_path, line, reason):
    written = write_jsonl(tmp_path / "a.jsonl", [{"text": "x"}, b"", line])
    assert read_error_message(written).startswith(f"a.jsonl line 3: {reason}")


def test_a_parquet_column_that_is_not_utf8_is_refused_with_its_file(tmp_path):
    raw = pyarrow.array([b"fine", b"caf\xe9"])
    column = pyarrow.Array.from_buffers(pyarrow.string(), 2, raw.buffers())  # says it is text
    assert read_error_message(write_parquet(tmp_path / "a.parquet", text=column)).startswith("a.parquet: ")


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pyarrow.array([1_700_000_000_123_456], pyarrow.timestamp("us")), datetime(2023, 11, 14, 22, 13, 20, 123456)),
        (pyarrow.array([1_700_000_000 * 10**9], pyarrow.timestamp("ns")), datetime(2023, 11, 14, 22, 13, 20)),
        (pyarrow.array([1_700_000_000_123_456_789], pyarrow.timestamp("ns")), "2023-11-14T22:13:20.123456789"),
        (pyarrow.array([1_700_000_000 * 10**6], pyarrow.timestamp("us", "Mars/X")), "2023-11-14T22:13:20.000000Z"),
        (pyarrow.array([1_013_609_203_200_000_000], pyarrow.timestamp("us")), "<value out of range"),
        (pyarrow.array([10**9], pyarrow.date32()), "<value out of range"),
        (pyarrow.array([10**9 + 1], pyarrow.time64("ns")), "00:00:01.000000001"),
        (pyarrow.array([10**9 + 1], pyarrow.duration("ns")), "1000000001"),
    ],
)
def test_times_that_python_cannot_hold_are_text_and_stop_no_reading(tmp_path, column, expected):
    (batch,) = open_source(write_parquet(tmp_path / "a.parquet", text=["x"], when=column)).batches()
    found = batch.records[0]["when"]
    assert found == expected or (expected[0] == "<" and found.startswith(expected))


@pytest.mark.parametrize("sizes", [(4, 0, 4), (4, 0), (0, 4), (0, 0, 2)])
def test_empty_row_groups_of_a_parquet_file_are_passed_over(tmp_path, sizes):
    table = pyarrow.table({"text": [str(n) for n in range(sum(sizes))]})
    with pyarrow.parquet.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for size in sizes:
            writer.write_table(table.slice(0, size))
    source = open_source(str(tmp_path / "a.parquet"))
    assert sum(len(batch) for batch in source.batches()) == source.count() == sum(sizes)


@pytest.mark.parametrize(("text", "at_once"), [("x" * 65_536, 16), ("x", 1000)])
def test_rows_that_repeat_a_large_text_are_decompressed_a_few_at_a_time(tmp_path, monkeypatch, text, at_once):
    """A file of a kilobyte can hold gigabytes of rows that share one text."""
    monkeypatch.setattr(parquet, "MAX_BATCH_BYTES", 2**20)
    write_parquet(tmp_path / "a.parquet", text=[text] * 1000)
    asked = []
    batches = pyarrow.parquet.ParquetFile.iter_batches
    monkeypatch.setattr(
        pyarrow.parquet.ParquetFile,
        "iter_batches",
        lambda file, rows, **options: asked.append(rows) or batches(file, rows, **options),
    )
    assert sum(map(len, parquet._read_parts(tmp_path / "a.parquet", "text", 1000, parquet.Span()))) == 1000
    assert at_once // 2 < asked[0] <= at_once


@pytest.mark.parametrize("names", [["text", "text"], ["text", "x", "x"]])
def test_columns_of_the_same_name_are_refused(tmp_path, names):
    pyarrow.parquet.write_table(pyarrow.table([["a"]] * len(names), names=names), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=f"2 columns with the name '{names[-1]}'"):
        open_source(str(tmp_path / "a.parquet")).kind()


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param("a text", id="text"),
        pytest.param([1.0, 2.0, 3.0], id="wider"),
        pytest.param([], id="empty"),
        pytest.param([1.0, None], id="missing number"),
        pytest.param(["1", "2"], id="numbers as texts"),
        pytest.param([[1.0, 2.0]], id="nested"),
    ],
)
def test_a_row_unlike_the_vectors_before_it_is_refused_with_file_and_row(tmp_path, bad):
    values = [[1.0, 2.0]] * BAD + [bad] + [[1.0, 2.0]] * 20
    written = write_jsonl(tmp_path / "a.jsonl", [{"text": value} for value in values])
    for rows in (1, 1024):
        message = read_error_message(written, rows)
        assert message.startswith("a.jsonl")
        assert names_row(message, BAD), message


def test_a_vector_among_texts_is_refused_with_file_and_row(tmp_path):
    values = ["text"] * BAD + [[1.0, 2.0]] + ["text"] * 20
    message = read_error_message(write_jsonl(tmp_path / "a.jsonl", [{"text": value} for value in values]))
    assert message.startswith("a.jsonl")
    assert names_row(message, BAD), message


@pytest.mark.parametrize(
    "values",
    [
        pyarrow.array([[1.0, 2.0]] * BAD + [bad], pyarrow.list_(pyarrow.float32()))
        for bad in ([1.0, np.nan], [1.0], None)
    ]
    + [["x"] * BAD + [None]],
    ids=["nan", "narrower", "missing", "missing text"],
)
def test_a_bad_row_of_a_parquet_file_is_refused_with_file_and_row(tmp_path, values):
    kind = pyarrow.string() if values[0] == "x" else pyarrow.list_(pyarrow.float32())
    message = read_error_message(write_parquet(tmp_path / "a.parquet", text=pyarrow.array(values, kind)))
    assert message.startswith("a.parquet")
    assert names_row(message, BAD), message


@pytest.mark.parametrize("name", ["a.npy", "a.jsonl"])
def test_a_value_too_large_for_float32_is_refused_like_infinity(tmp_path, name):
    values = [[1.0, 2.0], [1.0, 1e39]]
    write = {"a.npy": write_npy, "a.jsonl": lambda path, rows: write_jsonl(path, [{"text": row} for row in rows])}
    assert read_error_message(write[name](tmp_path / name, values)).startswith(name)


def test_an_npy_file_with_an_altered_header_byte_is_read_or_raises_source_error(tmp_path):
    payload = Path(write_npy(tmp_path / "whole.npy", VECTORS)).read_bytes()
    path, refused = tmp_path / "a.npy", 0
    for position in range(payload.index(b"\n")):
        for byte in b"(9'\x00":
            path.write_bytes(payload[:position] + bytes([byte]) + payload[position + 1 :])
            try:
                list(open_source(str(path)).batches())
            except SourceError as error:
                refused += str(error).startswith("a.npy")
    assert refused > 100


def test_an_npy_file_of_pickled_objects_is_refused_without_running_them(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    payload = np.empty((2, 2), dtype=object)
    payload[:] = Trap()
    np.save(tmp_path / "a.npy", payload, allow_pickle=True)
    assert read_error_message(str(tmp_path / "a.npy")).startswith("a.npy ")
    (tmp_path / "a.npy").write_bytes(pickle.dumps(Trap()))
    assert read_error_message(str(tmp_path / "a.npy")).startswith("a.npy ")
    assert not (tmp_path / "sprung").exists()


def test_an_npy_file_of_other_than_rows_of_floats_is_refused_with_its_shape(tmp_path):
    for array in (np.ones((3, 2), np.int64), np.ones(3), np.ones((2, 2, 2)), np.ones((3, 0))):
        message = read_error_message(write_npy(tmp_path / "a.npy", array))
        assert message.startswith("a.npy must hold floats of the shape (n, d)")
        assert str(array.shape) in message


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt.gz", "a.parquet", "a.npy"])
def test_the_kind_of_a_source_without_rows_is_refused_as_empty(tmp_path, name):
    path = tmp_path / name
    if name == "a.parquet":
        write_parquet(path, text=pyarrow.array([], pyarrow.string()))
    elif name == "a.npy":
        write_npy(path, VECTORS[:0])
    else:
        path.write_bytes(gzip.compress(b"\n \n") if name.endswith(".gz") else b"\n \n")
    assert open_source(str(path)).count() == 0
    with pytest.raises(SourceError, match=rf"{re.escape(name)}.*empty"):
        open_source(str(path)).kind()


@pytest.mark.parametrize(
    "written",
    ["missing.jsonl", "missing.npy#x", "~nobody-of-this-name/a.jsonl", "x" * 5000, "\0", ""]
    + [pytest.param("\ud800", id="half a character")],
)
def test_a_path_that_is_no_file_is_refused_and_the_built_in_sources_are_named(tmp_path, monkeypatch, written):
    (tmp_path / "here.txt").write_text("a file that nobody asked for")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match="pydoc:"):
        open_source(written)


def test_an_unknown_suffix_is_refused_and_the_known_ones_are_listed(tmp_path):
    for name in ("a.csv", "a.json", "a", "jsonl", "a.gz", "a.npy.gz", "a.parquet.gz"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(SourceError, match=r"\.jsonl, \.jsonl\.gz, \.txt"):
            open_source(str(tmp_path / name))
    with pytest.raises(SourceError, match=r"folder .* no file of a known format; allowed are \.jsonl"):
        open_source(str(tmp_path))


def test_every_suffix_in_formats_can_be_opened_and_a_file_deleted_afterwards_is_named_in_the_error(tmp_path):
    for suffix in FORMATS:
        path = tmp_path / f"a{suffix}"
        path.touch()
        source = open_source(str(path))
        assert source.files == (str(path),)
        path.unlink()
        for read in (source.kind, source.count, lambda source=source: list(source.batches())):
            with pytest.raises(SourceError, match=f"^a{suffix} "):
                read()


@pytest.mark.parametrize(
    ("name", "filling"),
    [("long.txt", b"a"), ("long.txt.gz", b" " * 999 + b"\n"), ("long.jsonl", b" " * 999 + b"\n")],
    ids=["a line", "blank lines", "blank lines of JSON"],
)
def test_a_line_or_blank_lines_of_over_16_mebibytes_are_refused(tmp_path, name, filling):
    first = b"" if filling == b"a" or "jsonl" in name else b"first\n"
    content = first + filling * (20_000_000 // len(filling)) + b"\nlast\n"
    (tmp_path / name).write_bytes(gzip.compress(content, 1) if name.endswith("gz") else content)
    with pytest.raises(SourceError, match="16,777,216 bytes"):
        list(open_source(str(tmp_path / name)).batches())
