"""Malformed requests, files and messages: each is answered or refused, and never an unexpected error.

Seconds in the suite, always with the same examples; `make fuzz EXAMPLES=100000` looks for new ones.
"""

import base64
import io
import json
import os
import shutil

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lathe.service.chains.registry import STARTERS, Registry
from lathe.service.codec import as_vectors, dump_json, parse_npy
from lathe.service.errors import ServiceError
from lathe.service.http.json_body import count_containers, parse_json
from lathe.service.index.query import MAX_CONDITIONS, Condition, evaluate_filter, parse_filter
from lathe.transforms.artifact import MANIFEST
from lathe.transforms.artifact.folder import manifest_digest
from lathe.transforms.errors import ArtifactError

EXAMPLES = os.environ.get("FUZZ_EXAMPLES")


def fuzz(examples, **inputs):
    """Decorate a test to run on this many examples, or on `FUZZ_EXAMPLES` of them if that is set."""

    def decorate(test):
        checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
        limits = settings(
            max_examples=int(EXAMPLES or examples), derandomize=EXAMPLES is None, suppress_health_check=checks,
            deadline=None, database=None,
        )  # fmt: skip
        return limits(given(**inputs)(test))

    return decorate


def nested(depth, inner=0):
    for _ in range(depth):
        inner = [inner] if depth % 2 else {"a": inner}
    return inner


def like(valid):
    """Generate JSON like a valid value, but for one or two replaced values anywhere in it."""

    @st.composite
    def changed(draw):
        found = orjson.loads(orjson.dumps(valid))
        for _ in range(draw(st.integers(1, 2))):
            place, key = found, draw(st.sampled_from(sorted(found)))
            while isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
                place = place[key]
                key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            place[key] = draw(odd)
        return found

    return changed()


numbers = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, 1, -1, 2**31, 2**63, 1e39, 1e-45, 1e308, 0.5]),
)
texts = st.one_of(st.text(max_size=8), st.sampled_from(["", "\0", "a" * 5000, "é" * 300, "../x", "compact@1", "$and"]))
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)
long_lists = st.sampled_from([int, str, dict, list, bool]).map(lambda kind: [kind() for _ in range(300)])
odd = st.one_of(values, st.sampled_from([17, 60, 300, 1000]).map(nested), long_lists)

VECTOR = [1.0] + [0.0] * 383
CALLS = {
    "/embed": {"inputs": ["a"], "truncate": True, "dimensions": 64, "chain": "compact", "prompt_name": None},
    "/v1/embeddings": {"input": "a", "model": "all-MiniLM-L6-v2", "encoding_format": "float", "dimensions": 64},
    "/reduce": {"vectors": [VECTOR], "chain": "compact", "dimensions": 64},
    "/fit-transform": {
        "name": "odd", "steps": [{"kind": "r2"}, {"kind": "geopres", "dimensions": 32, "steps": 5}], "seed": 1,
        "source": {"texts": ["a"]}, "targets": {"vectors": [[1.0]]}, "gates": {"recall_at_10": 0.5},
    },
    "/advise": {"source": {"texts": ["a"]}, "keep": 0.9, "rows": 100, "seed": 1, "fit": "odd"},
    "/chains/compact/promote": {"version": 99, "force": False, "gates": {"recall_at_10": 0.5}},
    "/indexes/odd/upsert": {"ids": ["a", "b"], "vectors": [VECTOR, VECTOR], "metadata": [{"a": {"b": [1]}}, None]},
    "/indexes/odd/search": {
        "vectors": [VECTOR], "k": 3, "ef": 10, "rescore": 2.0, "space_id": None, "encoder": None,
        "filter": {"or": [{"a": 1}, {"not": {"b": {"in": ["x"], "gt": 2}}}]},
    },
    "/indexes/asked-for": {"chain": "compact", "width": 8, "dimensions": 4, "metric": "ip", "m": 4, "text_field": "t"},
    "/indexes/odd/get": {"ids": ["a"], "vectors": True},
    "/indexes/odd/delete": {"ids": ["a"]},
    "/indexes/odd/reindex": {"chain": "nobody", "m": 16, "dimensions": 64, "texts": {"a": "b"}, "text_field": "t"},
}  # fmt: skip


@pytest.fixture(scope="module")
def index(lathe):
    made = lathe.client.put("/indexes/odd", json={"chain": "compact"}, headers=lathe.admin)
    assert made.status_code == 200, made.text
    yield
    lathe.client.delete("/indexes/odd", headers=lathe.admin)


@pytest.mark.parametrize("path", CALLS)
def test_malformed_requests_to_every_route_with_a_body_get_no_5xx_and_a_short_error(lathe, index, path):
    """A request body with one or two replaced values is answered below 500. An error has the documented fields."""

    @fuzz(6, body=like(CALLS[path]))
    def ask(body):
        method = "PUT" if path == "/indexes/asked-for" else "POST"
        answer = lathe.client.request(method, path, json=body, headers=lathe.admin)
        assert answer.status_code < 500, (answer.status_code, answer.text[:300], str(body)[:500])
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            assert len(answer.content) < 20_000

    ask()
    lathe.client.delete("/indexes/asked-for", headers=lathe.admin)


@fuzz(
    30,
    body=st.one_of(st.binary(max_size=60), odd.map(lambda value: json.dumps(value).encode())),
    cut=st.integers(0, 60),
)
def test_parse_json_raises_only_service_errors_and_count_containers_counts_lists_and_objects(body, cut):
    for part in (body, body[:cut]):
        try:
            found = parse_json(part)
        except ServiceError:
            continue
        assert count_containers(part) == containers(found) or b'"' in part  # equal keys hide what stood under the first


def containers(value):
    """Count lists and objects without recursion, which deep values would exhaust."""
    count, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, dict | list):
            count += 1
            left += one.values() if isinstance(one, dict) else one
    return count


rows = st.one_of(
    st.lists(numbers, min_size=2, max_size=2),
    st.lists(numbers | scalars, max_size=3),
    st.binary(max_size=12).map(lambda content: base64.b64encode(content).decode()),
    odd,
)


@fuzz(50, given_rows=st.lists(rows, max_size=4), width=st.none() | st.integers(1, 3))
def test_as_vectors_returns_the_given_numbers_as_float32_or_raises_a_service_error(given_rows, width):
    try:
        found = as_vectors(given_rows, 3, width)
    except ServiceError:
        return
    if isinstance(given_rows[0], str):
        expected = [np.frombuffer(base64.b64decode(row), "<f4") for row in given_rows]
    else:
        assert {type(value) for row in given_rows for value in row} <= {int, float}
        expected = np.array(given_rows, np.float64).astype(np.float32)
    assert found.dtype == np.float32 and width in (None, found.shape[1])
    np.testing.assert_array_equal(found, expected)


def npy_of(shape, dtype="<f4", fortran=False, values=b"", version=(1, 0)):
    header = f"{{'descr': {dtype!r}, 'fortran_order': {fortran!r}, 'shape': {shape}, }}".encode("latin-1", "replace")
    length = len(header).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + header + values


sizes = st.one_of(st.integers(0, 4), st.sampled_from([-1, 2**31, 2**63, 10**20, True]))
shapes = st.one_of(
    st.lists(sizes, max_size=3).map(lambda found: str(tuple(found))),
    st.just(str((1,) * 65)),
    st.just("(" * 3000),
    st.just("1" * 9000),
    st.just("-" * 9000 + "1"),
    st.text(max_size=30),
)
dtypes = st.one_of(
    st.sampled_from(["<f4", ">f8", "<f2", "<i8", "|O", "<c8", [("a", "<f4")], "<f4,<f4", "<f16"]), st.text(max_size=5)
)
files = st.builds(
    npy_of, shapes, dtypes, st.booleans(), st.binary(max_size=64), st.sampled_from([(1, 0), (2, 0), (3, 0), (9, 9)])
)


@fuzz(50, body=st.one_of(st.binary(max_size=80), files), flip=st.integers(0, 79), other=st.integers(0, 255))
@pytest.mark.filterwarnings("ignore")
def test_parse_npy_returns_what_numpy_reads_as_float32_or_raises_a_service_error(body, flip, other):
    for content in (body, body[:flip] + bytes([other]) + body[flip + 1 :]):
        try:
            found = parse_npy(content, 3)
        except ServiceError:
            continue
        assert found.dtype == np.float32 and found.ndim == 2 and found.size and len(found) <= 3
        np.testing.assert_array_equal(found, np.load(io.BytesIO(content)).astype(np.float32))


filters = st.recursive(
    st.dictionaries(texts, st.one_of(scalars, odd), max_size=3),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["and", "$or", "or"]), st.lists(inner, max_size=4), min_size=1),
        st.dictionaries(st.sampled_from(["not", "$not"]), inner, min_size=1),
        st.lists(inner, min_size=1, max_size=4).map(lambda parts: {"or": parts * 40}),
    ),
    max_leaves=6,
)


@fuzz(30, wanted=st.one_of(filters, odd))
def test_parse_filter_refuses_a_filter_or_evaluates_at_most_max_conditions(wanted):
    asked = []

    def mask_of(condition):
        assert isinstance(condition, Condition)
        asked.append(condition)
        return np.array([len(condition.field) % 2 == 0, True])

    try:
        found = parse_filter(wanted)
    except ServiceError:
        return
    assert evaluate_filter(found, mask_of, 2).shape == (2,)
    assert len(asked) <= MAX_CONDITIONS


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    root = tmp_path_factory.mktemp("chains")
    for name in ("good", "odd"):
        shutil.copytree(STARTERS / "compact", root / name)
    return Registry(root)


MANIFEST_NOW = orjson.loads((STARTERS / "compact" / "1" / MANIFEST).read_bytes())


@fuzz(12, manifest=like(MANIFEST_NOW))
def test_a_malformed_manifest_does_not_affect_other_chains(chains, manifest):
    """A registry with one malformed manifest still lists both chains as JSON and loads the sound one."""
    write_manifest(chains, manifest)
    chains = Registry(chains.root)  # one that has read neither
    described = [chains.describe(name) for name in chains.names()]
    dump_json(described)
    assert described[0]["state"] == "ready" and chains.load("good").version == 1
    if described[1]["state"] == "ready":
        encoder = described[1].get("encoder")
        assert not encoder or isinstance(encoder["fingerprint"], str)
    try:
        chains.load("odd")
    except ArtifactError:
        pass
    else:
        assert described[1]["state"] == "ready"


def write_manifest(chains, manifest):
    """Write a manifest with a valid digest to the chain `odd`."""
    path = chains.root / "odd" / "1" / MANIFEST
    try:
        manifest["manifest_sha256"] = manifest_digest(manifest)
        path.write_text(json.dumps(manifest))
    except RecursionError:  # Python writes less deep nesting than it is asked to read
        path.write_text("[" * 100_000)
