import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lathe.service.errors import BadValueError
from lathe.service.index.embedded.filter_masks import FILTER_STEPS, FilterWork, find_matching_labels
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.items import MAX_FIELDS, list_entries
from lathe.service.index.query import MAX_CONDITIONS, MAX_DEPTH, Condition, evaluate_filter, parse_filter
from lathe.service.index.spec import IndexSpec

SPEC = IndexSpec(
    encoder=None, encoder_fingerprint=None, width=4, raw_space_id="r", chain="none", dimensions=4, space_id="r"
)
ITEMS = 200


@pytest.fixture(scope="module")
def metadata(metadata_of):
    return metadata_of(ITEMS)


@pytest.fixture(scope="module")
def record(metadata, tmp_path_factory):
    """Build a record of items with the random metadata."""
    record = IndexRecord.create(tmp_path_factory.mktemp("record") / "record.db", SPEC, None)
    payloads = [json.dumps(given).encode() if given else None for given in metadata]
    ids = [str(number) for number in range(ITEMS)]
    record.upsert(ids, np.ones((ITEMS, 4), np.float32), metadata, payloads, SPEC)
    yield record
    record.close()


def find_by_record(record, given):
    """Return the items that a filter finds in the record."""

    def mask_of(condition):
        mask = np.zeros(ITEMS, np.bool_)
        mask[find_matching_labels(record, condition, 0, ITEMS, FilterWork(FILTER_STEPS)) - 1] = True
        return mask

    return np.flatnonzero(evaluate_filter(parse_filter(given), mask_of, ITEMS)).tolist()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_filter_in_the_record_finds_the_items_that_satisfy_it_directly(record, metadata, filters, satisfies, data):
    given = data.draw(filters)
    assert find_by_record(record, given) == [row for row in range(ITEMS) if satisfies(metadata[row], given)]


def test_eq_in_and_negated_ne_find_equal_values_only_for_every_kind_of_value(record, metadata, satisfies, scalars):
    for scalar in scalars:
        expected = [row for row in range(ITEMS) if satisfies(metadata[row], {"a": scalar})]
        for asked in ({"a": scalar}, {"a": {"$in": [scalar]}}, {"not": {"a": {"ne": scalar}}}):
            assert find_by_record(record, asked) == expected, asked


def test_find_matching_returns_labels_of_the_given_range_only(record):
    condition = parse_filter({"a": {"exists": True}})
    work = FilterWork(FILTER_STEPS)
    whole = find_matching_labels(record, condition, 0, ITEMS, work)
    part = find_matching_labels(record, condition, 50, 120, work)
    assert part.tolist() == [label for label in whole if 50 < label <= 120]
    assert not len(find_matching_labels(record, condition, ITEMS, ITEMS, work))


def test_list_entries_allows_256_values_and_a_depth_of_8():
    assert len(list_entries({"a": list(range(MAX_FIELDS))})) == MAX_FIELDS
    with pytest.raises(BadValueError, match="at most 256 values"):
        list_entries({str(n): n for n in range(MAX_FIELDS + 1)})
    for wrap in (lambda inner: {"a": inner}, lambda inner: [inner]):
        nested = 1
        for _ in range(7):
            nested = wrap(nested)
        assert list_entries({"a": nested})
        with pytest.raises(BadValueError, match="at most 8 deep") as refused:
            list_entries({"a": wrap(nested)})
        assert refused.value.param == "metadata"


def nested_filter(depth):
    """Nest a filter in `not` this many times."""
    found = {"a": 1}
    for _ in range(depth):
        found = {"not": found}
    return found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"a": 1}], "a filter is an object"),
        ({"and": ["a"]}, "a filter is an object"),
        ({"not": 3}, "a filter is an object"),
        ({"and": {"a": 1}}, "and takes a list of filters"),
        ({"$or": []}, r"\$or takes a list of filters"),
        ({"a": {}}, "a: give one of eq, ne, in, nin, exists, gt, gte, lt, lte"),
        ({"a": {"like": "x"}}, "a: there is no operator 'like'; there are eq, ne"),
        ({"a": {"$$gt": 1}}, r"a: there is no operator '\$gt'"),
        ({"a": {"in": 1}}, "a: in and nin take a list of 1 to 1,000 values"),
        ({"a": {"nin": []}}, "a: in and nin take a list of 1 to 1,000 values"),
        ({"a": {"in": [1] * 1001}}, "a: in and nin take a list of 1 to 1,000 values"),
        ({"a": {"in": [[1]]}}, "a: compare with a text, a number, true, false or null"),
        ({"a": [1]}, "a: compare with a text, a number, true, false or null"),
        ({"a": {"eq": {"b": 1}}}, "a: compare with a text, a number, true, false or null"),
        ({"a": {"exists": 1}}, "a: exists takes true or false"),
        ({"a": {"gt": True}}, "a: gt takes a number or a text"),
        ({"a": {"$lte": None}}, "a: lte takes a number or a text"),
        (nested_filter(MAX_DEPTH + 1), "nested at most 16 deep"),
        ({"or": [{"a": 1}] * (MAX_CONDITIONS + 1)}, "at most 256 conditions"),
    ],
)
def test_parse_filter_refuses_an_invalid_filter_with_the_reason(given, message):
    with pytest.raises(BadValueError, match=message) as refused:
        parse_filter(given)
    assert refused.value.param == "filter"


def test_parse_filter_accepts_filters_at_the_limits():
    assert parse_filter(nested_filter(MAX_DEPTH))
    assert parse_filter({"or": [{"a": 1}] * MAX_CONDITIONS})
    assert isinstance(parse_filter({"a": {"in": [1] * 1000}}), Condition)
