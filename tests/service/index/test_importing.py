"""Ids and metadata of imported rows are what the file holds, or the import says what they are instead."""

from decimal import Decimal
from uuid import UUID

import numpy as np
import orjson
import pytest

from lathe.service.errors import BadValueError
from lathe.service.http.json_body import validate_json
from lathe.service.http.schemas import UpsertBody
from lathe.service.index.importing import Ids, format_id
from lathe.service.index.items import serialize_metadata
from lathe.training.sources.rows import RowBatch
from lathe.training.sources.source import open_source


def test_an_id_is_written_as_text():
    given = ["a", 7, 2**70, 7.0, -3.0, b"caf\xc3\xa9", Decimal("12"), UUID(int=5)]
    written = ["a", "7", str(2**70), "7", "-3", "café", "12", "00000000-0000-0000-0000-000000000005"]
    assert [format_id(value) for value in given] == written


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "missing"),
        (1.5, "1.5, which is not a whole number"),
        (float("nan"), "nan, which is not a whole number"),
        (1.2345678901234568e22, "not a whole number below 2\\^53: write ids as texts"),
        (True, "True, which is neither a text"),
        (b"\xff\x00", "bytes that are not UTF-8"),
        (Decimal("1.5"), "a Decimal: write ids as texts"),
        ([1], "a list: write ids as texts"),
    ],
)
def test_anything_else_is_refused_as_an_id(value, reason):
    with pytest.raises(ValueError, match=reason):
        format_id(value)


def build(records, listed=None):
    """Return the ids and the metadata of imported records."""
    batch = RowBatch(np.zeros((len(records), 2), np.float32), records)
    return Ids(listed, None, len(records)).build_rows(batch, 0, "vector", None)


def test_bytes_in_metadata_are_text_or_refused_with_their_row():
    rows = build([{"id": 1.0, "name": b"caf\xc3\xa9", "n": {"deep": b"x"}}])
    assert rows == (["1"], [{"name": "café", "n": {"deep": "x"}}])
    with pytest.raises(BadValueError, match="row 2: the metadata holds bytes that are not UTF-8"):
        build([{"id": 1}, {"id": 2, "raw": b"\xff"}])


def test_a_list_of_ids_begins_without_a_byte_order_mark_and_is_utf_8(tmp_path):
    (tmp_path / "ids.txt").write_bytes("é\nb".encode("utf-8-sig"))
    assert build([{}, {}], tmp_path / "ids.txt")[0] == ["é", "b"]
    (tmp_path / "ids.txt").write_bytes("a\u2028b \r\nc\x85d\n\n".encode())  # only line feeds end a line
    assert build([{}, {}], tmp_path / "ids.txt")[0] == ["a\u2028b", "c\x85d"]
    (tmp_path / "ids.txt").write_bytes("é\nb".encode("utf-16"))
    with pytest.raises(BadValueError, match=r"ids\.txt: the file is UTF-16"):
        build([{}, {}], tmp_path / "ids.txt")


def test_an_integer_beyond_64_bits_is_refused_in_metadata_and_floats_of_any_size_are_stored():
    for number in (2**64, -(2**63) - 1, 10**30):
        with pytest.raises(BadValueError, match=rf"metadata\[3\] holds {number}, an integer beyond 64 bits: write"):
            serialize_metadata(3, {"n": [{"deep": number}]})
    for number in (2**64 - 1, -(2**63), 1.5, 2.0**64, 1e300, None, True):
        assert orjson.loads(serialize_metadata(0, {"n": number})) == {"n": number}


def test_lines_and_bodies_tell_long_integers_from_floats(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "n": [1e30]}\n{"text": "b", "n": [1000000000000000000000]}')
    (batch,) = open_source(str(tmp_path / "rows.jsonl")).raw_batches(10)
    assert [type(record["n"][0]) for record in batch.records] == [float, int]
    body = b'{"ids": ["a", "b"], "texts": ["a", "b"], "metadata": [{"n": 1e30}, {"n": 1000000000000000000000}]}'
    assert [type(fields["n"]) for fields in validate_json(body, UpsertBody).metadata] == [float, int]
    deep = b'{"ids": ["a"], "texts": ["a"], "metadata": [{"n": [1e30, ' + b"[" * 900 + b"]" * 900 + b"]}]}"
    with pytest.raises(BadValueError, match="nested too deep"):
        serialize_metadata(0, validate_json(deep, UpsertBody).metadata[0])
