"""What is read is what was written, in every format: marks of encodings, vectors as texts, NaN, `#` in names."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lathe.training.errors import SourceError
from lathe.training.sources.source import open_source

VECTOR = json.dumps([round(0.1 * number, 1) for number in range(16)])


def read(path, field=""):
    """Return all values of a source."""
    return [value for batch in open_source(f"{path}{field}").batches() for value in batch.values]


def write(path, content):
    """Write bytes, compressed for a name that says so, and return the path."""
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz"])
def test_a_byte_order_mark_is_no_part_of_the_first_text(tmp_path, name):
    lines = ["häuser", "zwei"] if "txt" in name else ['{"text": "häuser"}', '{"text": "zwei"}']
    assert read(write(tmp_path / name, "\n".join(lines).encode("utf-8-sig"))) == ["häuser", "zwei"]


def test_another_encoding_is_named_with_what_to_do(tmp_path):
    for name, content in (("a.txt", "häuser\n"), ("a.jsonl", '{"text": "häuser"}\n')):
        for encoding, reason in (("utf-16", "line 1: the file is UTF-16: save"), ("latin-1", "byte 0xe4 at .*save")):
            with pytest.raises(SourceError, match=reason):
                read(write(tmp_path / name, content.encode(encoding)))


def put_text(path, text):
    """Write a source whose second text is `text`, in the format of the name."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": ["a text", text]}), path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps({"text": each}) for each in ("a text", text)))
    else:
        path.write_text(f"a text\n{text}")
    return f"{path}#text" if path.suffix == ".parquet" else str(path)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet"])
def test_a_text_that_is_a_vector_written_out_is_refused(tmp_path, name):
    with pytest.raises(SourceError, match=r"a text that is a list of 16 numbers: write vectors as lists"):
        read(put_text(tmp_path / name, VECTOR))


def test_other_texts_in_brackets_are_texts(tmp_path):
    for text in ("[1, 2, 3]", "[see below]", VECTOR[:-1], json.dumps(["a"] * 20), f"x = {VECTOR}"):
        assert read(put_text(tmp_path / "a.jsonl", text)) == ["a text", text]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "a", "score": NaN}', "line 1: NaN or Infinity in 'score', which JSON does not allow: write null"),
        ('{"vector": [1, Infinity], "text": "a"}', "in 'vector'"),
        (
            r'{"text": "a\ud800"}',
            "line 1: a text with half of a surrogate pair, which is not Unicode: .* at character 11",
        ),
    ],
)
def test_what_json_lacks_is_named_by_its_line_and_field(tmp_path, line, reason):
    with pytest.raises(SourceError, match=reason):
        read(write(tmp_path / "a.jsonl", line.encode()))


@pytest.mark.parametrize(("name", "field"), [("a#1.jsonl", ""), ("a#1.jsonl", "#text"), ("c#/b.jsonl", "#text")])
def test_names_of_files_and_folders_may_hold_the_sign_before_a_field(tmp_path, name, field):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    write(tmp_path / name, b'{"text": "a"}')
    assert read(tmp_path / name, field) == ["a"]
    assert open_source(f"{tmp_path / name}{field}").location == str((tmp_path / name).resolve())
