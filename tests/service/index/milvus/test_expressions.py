import json

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lathe.service.errors import TooLargeError
from lathe.service.index.items import MAX_FIELDS, list_entries
from lathe.service.index.milvus.expressions import (
    build_entries,
    build_ranges,
)
from lathe.service.index.milvus.indexes import MilvusIndexes
from lathe.service.index.query import MAX_CONDITIONS, MAX_DEPTH, Query, parse_filter
from lathe.service.index.spec import IndexSpec

SPEC = IndexSpec(
    encoder=None, encoder_fingerprint=None, width=4, raw_space_id="r", chain="none", dimensions=4, space_id="r"
)
ITEMS = 60


def nested(depth):
    """Nest a filter in `not` this many times."""
    found = {"a": 1}
    for _ in range(depth):
        found = {"not": found}
    return found


FIXED = {
    "everything": {},
    "nothing": {"not": {}},
    "a name that no item has": {"nowhere": {"exists": True}},
    "no value for a name that no item has": {"nowhere": {"ne": 1}},
    "a list of nothing exists": {"list": {"exists": True}},
    "an object exists": {"c": {"exists": True}, "not": {"c.d": {"exists": True}}},
    "true is not one": {"or": [{name: True} for name in ("a", "b", "list", "ab")]},
    "one is not true": {"or": [{name: 1.0} for name in ("a", "b", "list", "ab")]},
    "null is a value": {"or": [{name: None} for name in ("a", "b", "list", "ab")]},
    "quotes and backslashes": {"or": [{'"\\': {"ne": '"'}}, {"a": '\\" or id != ""'}]},
    "a name with a point and a space": {"Ä. ": {"gte": 0}},
    "numbers are not texts": {"a": {"gte": -(2**63)}, "not": {"a": {"gte": ""}}},
    "both sides of a list": {"list": {"gt": 0, "lt": 0}},
    "beyond whole numbers": {"or": [{"a": {"gt": 2**63 - 1}}, {"b": {"lt": -(2**63) + 1}}]},
    "between neighbours": {"a": {"gt": 2**53, "lte": 2**53 + 1}},
    "many values": {"a": {"in": [*range(999), "a"]}},
    "many conditions": {"or": [{"a": {"gt": number}} for number in range(MAX_CONDITIONS)]},
    "deep": nested(MAX_DEPTH),
}


@pytest.fixture(scope="module")
def metadata(metadata_of):
    """Return the items' metadata as parsed from a request."""
    return [given and orjson.loads(json.dumps(given)) for given in metadata_of(ITEMS)]


@pytest.fixture(scope="module")
def indexes(milvus):
    indexes = MilvusIndexes(milvus.url, "")
    yield indexes
    indexes.close()


@pytest.fixture(scope="module")
def index(indexes, metadata):
    """A real collection with an item for each metadata."""
    index = indexes.create("filtered", SPEC, None)
    index.upsert([str(number) for number in range(ITEMS)], np.ones((ITEMS, 4), np.float32), metadata, None).result()
    yield index
    indexes.delete("filtered")


def find_ids(index, given):
    """Return the ids of the items that a search with a filter finds."""
    hits = index.search(Query(np.ones((1, 4), np.float32), ITEMS, item_filter=parse_filter(given)))[0]
    return sorted(hit["id"] for hit in hits)


def expected_ids(satisfies, metadata, given):
    """Return the ids of the items whose metadata satisfies a filter."""
    return sorted(str(place) for place, said in enumerate(metadata) if satisfies(said, given))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_filter_in_milvus_finds_the_items_that_satisfy_it_directly(index, metadata, filters, satisfies, data):
    given = data.draw(filters)
    assert find_ids(index, given) == expected_ids(satisfies, metadata, given)


def test_edge_case_filters_in_milvus_find_the_items_that_satisfy_them_directly(index, metadata, satisfies):
    for what, asked in FIXED.items():
        assert find_ids(index, asked) == expected_ids(satisfies, metadata, asked), what


def test_eq_and_ranges_in_milvus_are_exact_for_every_kind_of_value(index, metadata, satisfies, scalars):
    for scalar in scalars:
        filters = [{"a": scalar}, {"not": {"a": {"ne": scalar}}}]
        if isinstance(scalar, str | int | float) and not isinstance(scalar, bool) and len(str(scalar)) < 200:
            filters += [{"a": {"gte": scalar}}, {"a": {"lt": scalar}}]
        for asked in filters:
            assert find_ids(index, asked) == expected_ids(satisfies, metadata, asked), asked


def test_milvus_items_take_256_fields_and_metadata_below_65536_bytes(indexes):
    index = indexes.create("large", SPEC, None)
    most = {f"field {number}": f"value {number}" for number in range(MAX_FIELDS)}
    index.upsert(["x"], np.ones((1, 4), np.float32), [most], None).result()
    found = list_entries(most)
    assert (len(build_entries(found)), len(build_ranges(found))) == (2 * MAX_FIELDS, 2 * MAX_FIELDS)
    assert index.get(["x"], vectors=False) == [{"id": "x", "metadata": most}]
    for number in (0, MAX_FIELDS - 1):
        assert find_ids(index, {f"field {number}": {"lte": f"value {number}"}}) == ["x"]
    with pytest.raises(TooLargeError, match=r"metadata\[0\] is larger than the 65,536 bytes"):
        index.upsert(["y"], np.ones((1, 4), np.float32), [{"a": "x" * 65_536}], None).result()
    assert index.get(["y"], vectors=False) == [None]
    indexes.delete("large")
