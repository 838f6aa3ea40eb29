import base64
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
import pytest

JSON = {"content-type": "application/json"}
ONE = [[1.0] + [0.0] * 383]


def nested(depth):
    """Nest an object in `not` this many times."""
    value = {}
    for _ in range(depth):
        value = {"not": value}
    return value


def put(**changes):
    """Build the body of an upsert of one vector, with changes."""
    return {"ids": ["x"], "vectors": ONE} | changes


def put_text(**changes):
    """Build the body of an upsert of one text, with changes."""
    return {"ids": ["x"], "texts": ["A text."]} | changes


def find(**changes):
    """Build the body of a search for one vector, with changes."""
    return {"vectors": ONE} | changes


def packed(*numbers):
    """Encode numbers as a base64 float32 vector."""
    return base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()


WRONG = [5, {}, ONE[0], [[1.0, 2.0]], [[1.0] * 128], [[None] * 384], [["1"] * 384], [[[1.0] * 384]], [[]]]
WRONG += [["!" * 2048], ["AAAA"], [""], [packed(1, 2)], [packed(*ONE[0]) + "AAAA"]]
UPSERTS = {
    400: {
        "the same id twice": put(ids=["x", "x"], vectors=ONE * 2),
        "no ids": put(ids=[]),
        **{f"the id {item[:5]!r}": put(ids=[item]) for item in ("", "x" * 10_000, "a\nb", "a\0b")},
        "a zero vector": put(ids=["x", "y"], vectors=[*ONE, [0.0] * 384]),
        "a vector of which float32 keeps no digit": put(vectors=[[1e-45] * 384]),
        "a vector that is zero in float32": put(vectors=[[1e-60] * 384]),
        "numbers beyond float32": put(vectors=[[1e39] * 384]),
        "NaN in base64": put(vectors=[packed(*[float("nan")] * 384)]),
        "inf in base64": put(vectors=[packed(*[float("inf")] * 384)]),
        "texts and vectors": put(texts=["a"]),
        "neither": {"ids": ["x"]},
        "no vectors": put(vectors=[]),
        "no texts": put_text(texts=[]),
        "an empty text": put_text(texts=[""]),
        "an unknown prompt": put_text(prompt_name="nobody"),
        "metadata of 300 values": put(metadata=[{f"f{place}": place for place in range(300)}]),
        "metadata 20 deep": put(metadata=[nested(20)]),
        "metadata 300 deep": put(metadata=[nested(300)]),
        "a long name in metadata": put(metadata=[{"x" * 257: 1}]),
        "a long name of several": put(metadata=[{"x" * 128: {"y" * 128: [1, 2]}}]),
    },
    409: {"another space": put(space_id="elsewhere"), "another space of texts": put_text(space_id="elsewhere")},
    413: {
        "metadata of a megabyte": put(metadata=[{"a": "x" * 1_000_000}]),
        "8,193 ids": put(ids=[f"{place}" for place in range(8193)]),
        "2,049 texts": put_text(ids=[f"{place}" for place in range(2049)], texts=["a"] * 2049),
    },
    422: {
        "no body": {},
        "ids of numbers": put(ids=[1]),
        "one id": put(ids="x"),
        "too few ids": put(vectors=ONE * 2),
        "too many ids": put(ids=["x", "y"]),
        "too little metadata": put(ids=["x", "y"], vectors=ONE * 2, metadata=[{}]),
        "too much metadata": put(metadata=[{}, {}]),
        "too little metadata of texts": put_text(ids=["x", "y"], texts=["a", "b"], metadata=[{}]),
        "too much metadata of texts": put_text(metadata=[{}, {}]),
        "metadata of one object": put(metadata={}),
        "metadata of texts": put(metadata=["a"]),
        "ragged": put(ids=["x", "y"], vectors=[*ONE, [1.0]]),
        "ragged base64": put(ids=["x", "y"], vectors=[packed(1, 2), packed(1)]),
        "numbers and base64": put(ids=["x", "y"], vectors=[*ONE, packed(*ONE[0])]),
        **{f"the vectors {str(vectors)[:40]}": put(vectors=vectors) for vectors in WRONG},
        "a number for texts": put_text(texts=5),
    },
}
FILTERS = ["en", 5, [], True, {"x": {"like": "a"}}, {"x": {}}, {"x": [1]}, {"and": []}, {"and": {}}, {"or": [5]}]
FILTERS += [{"not": 5}, {"x": {"in": "a"}}, {"x": {"in": []}}, {"x": {"in": [{}]}}, {"x": {"in": ["a"] * 1001}}]
FILTERS += [{"x": {"gt": None}}, {"x": {"gt": True}}, {"x": {"exists": 1}}, nested(40), nested(400)]
FILTERS += [{"or": [{"x": place} for place in range(300)]}, {"or": [{}] * 300}]
SEARCHES = {
    400: {
        "ef below k": find(k=10, ef=9),
        **{f"k {k}": find(k=k) for k in (0, -1, 10**9)},
        **{f"ef {ef}": find(ef=ef) for ef in (0, 5, 10**9)},
        **{f"rescore {rescore}": find(rescore=rescore) for rescore in (0, 0.5, -1, 1e9)},
        "a zero query": find(vectors=[[0.0] * 384]),
        "a query of which float32 keeps no digit": find(vectors=[[1e-45] * 384]),
        "texts and vectors": find(texts="a"),
        "neither": {"k": 1},
        "an empty text": {"texts": ["a", ""]},
        **{f"the filter {str(wanted)[:40]}": find(filter=wanted) for wanted in FILTERS},
    },
    404: {"an unknown encoder": find(encoder="nobody")},
    409: {"another space": find(space_id="elsewhere")},
    413: {
        "k times rescore huge": find(k=10_000, rescore=1000),
        "queries times k huge": find(vectors=ONE * 300, k=10_000),
        "8,193 queries": find(vectors=[[1.0]] * 8193),
    },
    422: {
        "k of text": find(k="10"),
        "k of a half": find(k=1.5),
        "rescore of text": find(rescore="2"),
        "too narrow": find(vectors=[[1.0]]),
        "ragged": find(vectors=[*ONE, [1.0]]),
    },
}
REINDEXES = {
    400: {"a size not served": {"dimensions": 129}, "a metric": {"metric": "x"}, "m one": {"m": 1}},
    404: {"an unknown chain": {"chain": "nobody"}, "an unknown encoder": {"encoder": "nobody"}},
    422: {"a list of texts": {"texts": ["a"]}, "m of text": {"m": "16"}},
}
BY_IDS = {
    400: {"no ids": {"ids": []}},
    413: {"8,193 ids": {"ids": ["x"] * 8193}},
    422: {"one id": {"ids": "x"}, "nothing": {}},
}
CALLS = {"upsert": UPSERTS, "search": SEARCHES, "reindex": REINDEXES, "get": BY_IDS, "delete": BY_IDS}
CASES = {
    f"{call}: {case}": (call, body, status)
    for call, statuses in CALLS.items()
    for status, cases in statuses.items()
    for case, body in cases.items()
}
NO_INDEXES = {
    400: [{"chain": "compact"} | more for more in ({"dimensions": 129}, {"dimensions": 0}, {"width": 100})]
    + [{"chain": "none", "width": width} for width in (10**7, 2**63 - 1, 16_385)]
    + [{"chain": "none", "width": 8} | more for more in ({"dimensions": 4}, {"metric": "x"}, {"m": 1})]
    + [{"chain": "none"} | more for more in ({"ef_construction": 10**9}, {"originals": "int8"})],
    404: [{"chain": "none", "encoder": "nobody"}, *[{"chain": chain} for chain in ("nobody", "compact@99", "../etc")]],
    422: [{}, {"chain": 5}, {"chain": "none", "m": "16"}],
}
NAMES = {400: ["none", ".hidden", "-x", "a b", "é", "a" * 65, "a%0A"], 404: ["a/b", "..%2F..%2Fetc"]}
BROKEN = [b"", b"{", b'{"ids": ["x"], "vectors": [[NaN]]}', b'{"ids": ["x"], "vectors": [[-Infinity]]}']
BROKEN += [b'{"ids": ["x"], "vectors": [[1e999]]}', b'{"ids": ["\\ud800"], "texts": ["a"]}']
BROKEN += [b'{"ids": ["x"], "texts": ["a"], "metadata": [{"a": NaN}]}']


@pytest.fixture(scope="module")
def in_milvus(start_app, milvus, tmp_path_factory):
    """Start an app with indexes in Milvus."""
    with start_app(home=tmp_path_factory.mktemp("home"), index_url=milvus.url) as app:
        yield app


@pytest.fixture(params=["lathe", "in_milvus"])
def backend(request):
    """Return the app with each backend of indexes."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def index(lathe, sentences):
    with filled(lathe, sentences) as path:
        yield path


@pytest.fixture(scope="module")
def milvus_index(in_milvus, sentences):
    with filled(in_milvus, sentences) as path:
        yield path


@pytest.fixture
def path(request, backend, lathe):
    """Of the same index in either backend."""
    return request.getfixturevalue("index" if backend is lathe else "milvus_index")


@contextmanager
def filled(app, sentences):
    """Create an index of six items for a block, and delete it afterwards."""
    path = "/indexes/bad-input"
    app.client.put(path, json={"chain": "compact", "text_field": "text"}, headers=app.admin)
    body = {"ids": [f"s{place}" for place in range(6)], "texts": sentences, "metadata": [{"place": 1}, *[None] * 5]}
    assert app.client.post(f"{path}/upsert", json=body).status_code == 200
    yield path
    app.client.delete(path, headers=app.admin)


@pytest.fixture
def unchanged(backend, path):
    """Assert that a test leaves the index and the jobs unchanged."""
    before = backend.client.get(path).json()
    jobs = backend.client.get("/jobs").json()
    yield
    after = backend.client.get(path).json()
    assert (after["count"], after.get("sequence")) == (before["count"], before.get("sequence"))
    assert backend.client.get("/jobs").json() == jobs


@pytest.fixture
def copied(lathe, index):
    """A second index with the same record, of which the server does not know yet."""
    folder = lathe.settings.home / "indexes" / "copied"
    folder.mkdir()
    source = folder.with_name(index.split("/")[-1]) / "record.db"
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(folder / "record.db")) as new:
        old.backup(new)
    yield folder
    assert lathe.client.delete("/indexes/copied", headers=lathe.admin).status_code == 200


def check_refused(answer, status):
    """Assert an error's status and shape, and return the error."""
    assert answer.status_code in (status if isinstance(status, tuple) else (status,)), answer.text[:500]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and len(error["message"]) > 10
    assert answer.headers["content-type"] == "application/json"
    return error


def answers(lathe, name, *methods):
    """Yield the answer to every call on an index."""
    for method, call in [("GET", ""), ("DELETE", ""), *[("POST", f"/{call}") for call in CALLS]]:
        if method in methods:
            body = {"/upsert": put(), "/search": find(), "/reindex": {}}.get(call, {"ids": ["x"]})
            yield lathe.client.request(method, f"/indexes/{name}{call}", json=body, headers=lathe.admin)


@pytest.mark.parametrize("case", CASES)
def test_invalid_index_requests_are_refused_and_change_nothing(backend, lathe, path, unchanged, case):
    call, body, status = CASES[case]
    if call == "reindex" and backend is not lathe:  # refused before anything is looked up, or for what it is
        status = status if status == 422 else (400, 501)
    check_refused(backend.client.post(f"{path}/{call}", json=body, headers=backend.admin), status)


@pytest.mark.parametrize("call", ["upsert", "search"])
@pytest.mark.parametrize("body", BROKEN)
def test_malformed_json_is_answered_400(backend, path, unchanged, call, body):
    check_refused(backend.client.post(f"{path}/{call}", content=body, headers=JSON), 400)


@pytest.mark.parametrize(
    ("body", "status"), [(body, status) for status, bodies in NO_INDEXES.items() for body in bodies]
)
def test_an_index_with_invalid_settings_is_refused_and_not_created(backend, body, status):
    check_refused(backend.client.put("/indexes/never", json=body, headers=backend.admin), status)
    check_refused(backend.client.get("/indexes/never"), 404)


@pytest.mark.parametrize(("name", "status"), [(name, status) for status, names in NAMES.items() for name in names])
def test_invalid_index_names_are_refused(backend, unchanged, name, status):
    check_refused(backend.client.put(f"/indexes/{name}", json={"chain": "none"}, headers=backend.admin), status)
    assert name not in backend.client.get("/indexes").text


@pytest.mark.parametrize("name", ["nobody", "none", ".lock", "a" * 300, "%00"])
def test_every_call_on_an_unknown_index_is_answered_404(backend, name):
    for answer in answers(backend, name, "GET", "DELETE", "POST"):
        check_refused(answer, 404)


def test_search_finds_nothing_for_unmatched_filters_and_all_items_for_a_large_k(backend, path, unchanged):
    for wanted in ({"nobody": 1}, {"place": "1"}, {"place": {"gt": 1}}, {"": 1}, {"x" * 10_000: {"in": [1]}}):
        answer = backend.client.post(f"{path}/search", json=find(filter=wanted))
        assert (answer.status_code, answer.json()["results"]) == (200, [[]]), answer.text
    found = backend.client.post(f"{path}/search", json=find(k=10_000)).json()["results"][0]
    assert len(found) == backend.client.get(path).json()["count"]


@pytest.mark.parametrize("length", [1e6, 1e-9])
def test_float16_originals_of_extreme_norms_are_refused_or_keep_their_direction(lathe, length):
    vector = np.random.default_rng(0).normal(size=8)
    body = {"chain": "none", "width": 8, "originals": "float16"}
    lathe.client.put("/indexes/half", json=body, headers=lathe.admin)
    answer = lathe.client.post("/indexes/half/upsert", json={"ids": ["a"], "vectors": [(vector * length).tolist()]})
    if answer.status_code == 200:
        item = lathe.client.post("/indexes/half/get", json={"ids": ["a"], "vectors": True}).json()["items"][0]
        kept = np.array(item["vector"], float)
        assert vector @ kept == pytest.approx(np.linalg.norm(vector) * np.linalg.norm(kept), rel=1e-3) and kept.any()
    else:
        check_refused(answer, 400)
    lathe.client.delete("/indexes/half", headers=lathe.admin)


@pytest.mark.parametrize("call", ["upsert", "search", "get", "delete"])
def test_a_call_on_an_index_deleted_meanwhile_is_answered_200_404_409_or_closing(backend, sentences, call):
    path, slow = "/indexes/doomed", call in ("upsert", "search")
    backend.client.put(path, json={"chain": "compact"}, headers=backend.admin)
    texts = {"texts": [f"{text} {place}" for text in sentences for place in range(20)]} if slow else {}
    body = texts | ({} if call == "search" else {"ids": [f"s{place}" for place in range(120)]})
    with ThreadPoolExecutor() as pool:
        late = pool.submit(backend.client.post, f"{path}/{call}", json=body)
        time.sleep(0.1 if slow else 0)  # its texts are being encoded
        assert backend.client.delete(path, headers=backend.admin).status_code == 200
        answer = late.result()
    assert answer.status_code in (200, 404, 409) or answer.json()["error"]["code"] == "closing", answer.text
    check_refused(backend.client.get(path), 404)


def test_an_index_owned_by_another_process_is_answered_409_and_others_serve(lathe, index, copied):
    hold = "import sys, filelock as f; lock = f.FileLock(sys.argv[1], mode=0o600); lock.acquire(); print(1); input()"
    command = [sys.executable, "-u", "-c", hold, str(copied.with_name(".copied.lock"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        owner.stdout.readline()
        for answer in answers(lathe, "copied", "GET", "DELETE", "POST"):
            error = check_refused(answer, 409)
            assert "one process owns an index" in error["message"] and error["code"] == "index_owned_elsewhere"
        check_listed(lathe, index, "owned elsewhere")
        owner.communicate(b"\n")
    assert lathe.client.get("/indexes/copied").json()["count"] == lathe.client.get(index).json()["count"]


def test_an_index_record_of_a_newer_schema_is_answered_503_and_other_indexes_serve(lathe, index, copied):
    with closing(sqlite3.connect(copied / "record.db")) as record:
        record.execute("PRAGMA user_version = 99")
    check_unavailable(lathe, index, "newer_schema", "upgrade Lathe")


def test_a_damaged_index_record_is_answered_503_and_other_indexes_serve(lathe, index, copied):
    (copied / "record.db").write_bytes(b"not a record" * 1000)
    check_unavailable(lathe, index, "corrupt_index", "cannot be read")


def check_unavailable(lathe, index, code, reason):
    """Assert that calls on the copied index are answered 503 and the other index serves."""
    for answer in answers(lathe, "copied", "GET", "POST"):
        error = check_refused(answer, 503)
        assert reason in error["message"] and error["code"] == code
    check_listed(lathe, index, "unavailable")


def check_listed(lathe, index, state):
    """Assert the copied index's state in the list, and that the other index serves."""
    listed = {entry["name"]: entry for entry in lathe.client.get("/indexes").json()}
    assert listed["copied"]["state"] == state and len(listed["copied"]["error"]) > 10
    assert listed[index.split("/")[-1]]["state"] == "ready"
    assert lathe.client.post(f"{index}/search", json=find()).status_code == 200
