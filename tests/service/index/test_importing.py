"""Ids and metadata of imported rows are what the file holds, or the import says what they are instead."""

import numpy as np
import orjson
import pytest

from lathe.service.errors import BadValueError
from lathe.service.index.importing import Ids, write_id
from lathe.service.index.items import serialize_metadata
from lathe.training.sources.kinds import RowBatch


def test_an_id_is_written_as_text():
    given = ["a", 7, 2**70, 7.0, -3.0, b"caf\xc3\xa9"]
    assert [write_id(value) for value in given] == ["a", "7", str(2**70), "7", "-3", "café"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "missing"),
        (1.5, "1.5, which is no whole number"),
        (float("nan"), "nan, which is no whole number"),
        (1.2345678901234568e22, "no whole number below 2\\^53: write ids as texts"),
        (True, "True, which is no text"),
        (b"\xff\x00", "bytes that are not UTF-8"),
        ([1], "a list: write ids as texts"),
    ],
)
def test_anything_else_is_refused_as_an_id(value, reason):
    with pytest.raises(ValueError, match=reason):
        write_id(value)


def build(records, listed=None):
    """Return the imported rows of records."""
    batch = RowBatch(np.zeros((len(records), 2), np.float32), records)
    return Ids(listed, None, len(records)).build_rows(batch, 0, "vector", None)


def test_bytes_in_metadata_are_text_or_refused_with_their_row():
    (row,) = build([{"id": 1.0, "name": b"caf\xc3\xa9", "n": {"deep": b"x"}}])
    assert (row.id, row.metadata) == ("1", {"name": "café", "n": {"deep": "x"}})
    with pytest.raises(BadValueError, match="row 1: the metadata holds bytes that are not UTF-8"):
        build([{"id": 1}, {"id": 2, "raw": b"\xff"}])


def test_a_list_of_ids_begins_without_a_byte_order_mark_and_is_utf_8(tmp_path):
    (tmp_path / "ids.txt").write_bytes("é\nb".encode("utf-8-sig"))
    assert [row.id for row in build([{}, {}], tmp_path / "ids.txt")] == ["é", "b"]
    (tmp_path / "ids.txt").write_bytes("é\nb".encode("utf-16"))
    with pytest.raises(BadValueError, match=r"ids\.txt: the file is UTF-16"):
        build([{}, {}], tmp_path / "ids.txt")


def test_a_number_that_would_be_rounded_is_refused_in_metadata_and_others_are_stored_as_written():
    for number in (2**64, -(2**64) - 1, 10**30, 1e300):
        (read,) = orjson.loads(f'[{{"n": [{{"deep": {number}}}]}}]')
        with pytest.raises(BadValueError, match=r"metadata\[3\] holds .*beyond 64 bits .*write larger ones as texts"):
            serialize_metadata(3, read)
    for number in (2**64 - 1, -(2**63), 1.5, 2.0**63, None, True):
        assert orjson.loads(serialize_metadata(0, {"n": number})) == {"n": number}
