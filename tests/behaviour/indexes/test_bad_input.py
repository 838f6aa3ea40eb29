import base64
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

PATH = "/indexes/bad-input"
ONE = [[1.0] + [0.0] * 383]


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"not": value}
    return value


def put(**changes):
    return {"ids": ["x"], "vectors": ONE} | changes


def put_text(**changes):
    return {"ids": ["x"], "texts": ["A text."]} | changes


def find(**changes):
    return {"vectors": ONE} | changes


def packed(*numbers):
    return base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()


UPSERTS = {
    400: {
        "the same id twice": put(ids=["x", "x"], vectors=ONE * 2),
        "an empty id": put(ids=[""]),
        "an id of 513 characters": put(ids=["x" * 513]),
        "an id with a line feed": put(ids=["a\nb"]),
        "a zero vector": put(ids=["x", "y"], vectors=[*ONE, [0.0] * 384]),
        "a vector of which float32 keeps no digit": put(vectors=[[1e-45] * 384]),
        "a norm beyond float32": put(vectors=[[3e38] * 384]),
        "NaN in base64": put(vectors=[packed(*[float("nan")] * 384)]),
        "texts and vectors": put(texts=["a"]),
        "no vectors": put(vectors=[]),
        "an unknown prompt": put_text(prompt_name="nobody"),
        "metadata of 257 values": put(metadata=[{f"f{place}": place for place in range(257)}]),
        "metadata 300 deep": put(metadata=[nested(300)]),
        "a name of 257 characters in metadata": put(metadata=[{"x" * 128: {"y" * 128: [1, 2]}}]),
    },
    409: {"texts of another space": put_text(space_id="elsewhere")},
    413: {
        "metadata of a megabyte": put(metadata=[{"a": "x" * 1_000_000}]),
        "8,193 ids": put(ids=[f"{place}" for place in range(8193)]),
        "2,049 texts": put_text(ids=[f"{place}" for place in range(2049)], texts=["a"] * 2049),
    },
    422: {
        "ids of numbers": put(ids=[1]),
        "too few ids": put(vectors=ONE * 2),
        "too little metadata": put(ids=["x", "y"], vectors=ONE * 2, metadata=[{}]),
        "metadata of texts": put(metadata=["a"]),
        "too narrow": put(vectors=[[1.0, 2.0]]),
        "too narrow base64": put(vectors=[packed(1, 2)]),
        "empty base64": put(vectors=[""]),
        "base64 of three bytes": put(vectors=["AAAA"]),
        "no base64": put(vectors=["!" * 2048]),
        "base64 and numbers": put(ids=["x", "y"], vectors=[packed(*ONE[0]), *ONE]),
    },
}
SEARCHES = {
    400: {
        "ef below k": find(k=10, ef=9),
        "k 0": find(k=0),
        "k 10,001": find(k=10_001),
        "ef 10,001": find(ef=10_001, k=1),
        "rescore below 1": find(rescore=0.5),
        "rescore 1,001": find(rescore=1001),
        "a zero query": find(vectors=[[0.0] * 384]),
        "neither texts nor vectors": {"k": 1},
        "an empty text": {"texts": ["a", ""]},
        "an unknown operator": find(filter={"x": {"like": "a"}}),
        "a filter 400 deep": find(filter=nested(400)),
    },
    404: {"an unknown encoder": find(encoder="nobody")},
    413: {
        "k times rescore huge": find(k=10_000, rescore=1000),
        "queries times k huge": find(vectors=ONE * 300, k=10_000),
        "8,193 queries": find(vectors=[[1.0]] * 8193),
    },
    422: {"k of text": find(k="10"), "too narrow": find(vectors=[[1.0]])},
}
REINDEXES = {
    400: {"a size not served": {"dimensions": 129}, "a metric": {"metric": "x"}, "m one": {"m": 1}},
    404: {"an unknown chain": {"chain": "nobody"}, "an unknown encoder": {"encoder": "nobody"}},
    422: {"a list of texts": {"texts": ["a"]}},
}
BY_IDS = {400: {"no ids": {"ids": []}}, 413: {"8,193 ids": {"ids": ["x"] * 8193}}, 422: {"one id": {"ids": "x"}}}
CALLS = {"upsert": UPSERTS, "search": SEARCHES, "reindex": REINDEXES, "get": BY_IDS, "delete": BY_IDS}
CASES = {
    f"{call}: {case}": (call, body, status)
    for call, statuses in CALLS.items()
    for status, cases in statuses.items()
    for case, body in cases.items()
}
NO_INDEXES = {
    "dimensions that are not served": ({"chain": "compact", "dimensions": 129}, 400),
    "another width than the encoder's": ({"chain": "compact", "width": 100}, 400),
    "a width beyond that of vectors": ({"chain": "none", "width": 16_385}, 400),
    "raw vectors cut": ({"chain": "none", "width": 8, "dimensions": 4}, 400),
    "a metric": ({"chain": "none", "metric": "x"}, 400),
    "m one": ({"chain": "none", "m": 1}, 400),
    "ef_construction 10,001": ({"chain": "none", "ef_construction": 10_001}, 400),
    "originals of bytes": ({"chain": "none", "originals": "int8"}, 400),
    "an unknown encoder": ({"chain": "none", "encoder": "nobody"}, 404),
    "an unknown version": ({"chain": "compact@99"}, 404),
    "no chain": ({}, 422),
}


@pytest.fixture(scope="module")
def index(lathe, sentences):
    """Create an index of six items and delete it afterwards."""
    lathe.client.put(PATH, json={"chain": "compact", "text_field": "text"}, headers=lathe.admin)
    body = {"ids": [f"s{place}" for place in range(6)], "texts": sentences, "metadata": [{"place": 1}, *[None] * 5]}
    assert lathe.client.post(f"{PATH}/upsert", json=body).status_code == 200
    yield
    lathe.client.delete(PATH, headers=lathe.admin)


@pytest.fixture
def unchanged(lathe, index):
    """Assert that a test leaves the index and the jobs unchanged."""

    def describe():
        described = lathe.client.get(PATH).json()
        return described["count"], described["sequence"], lathe.client.get("/jobs").json()

    before = describe()
    yield
    assert describe() == before


@pytest.fixture
def copied(lathe, index):
    """A second index with the same record, of which the server does not know yet."""
    folder = lathe.settings.home / "indexes" / "copied"
    folder.mkdir()
    source = folder.with_name(PATH.split("/")[-1]) / "record.db"
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(folder / "record.db")) as new:
        old.backup(new)
    yield folder
    assert lathe.client.delete("/indexes/copied", headers=lathe.admin).status_code == 200


def check_refused(answer, status):
    """Assert an error's status and shape, and return the error."""
    assert answer.status_code == status, answer.text[:500]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and len(error["message"]) > 10
    assert answer.headers["content-type"] == "application/json"
    return error


def answers(lathe, name, *methods):
    for method, call in [("GET", ""), ("DELETE", ""), *[("POST", f"/{call}") for call in CALLS]]:
        if method in methods:
            body = {"/upsert": put(), "/search": find(), "/reindex": {}}.get(call, {"ids": ["x"]})
            yield lathe.client.request(method, f"/indexes/{name}{call}", json=body, headers=lathe.admin)


@pytest.mark.parametrize("case", CASES)
def test_invalid_index_requests_are_refused_and_change_nothing(lathe, unchanged, case):
    call, body, status = CASES[case]
    check_refused(lathe.client.post(f"{PATH}/{call}", json=body, headers=lathe.admin), status)


@pytest.mark.parametrize("case", NO_INDEXES)
def test_an_index_with_invalid_settings_is_refused_and_not_created(lathe, case):
    body, status = NO_INDEXES[case]
    check_refused(lathe.client.put("/indexes/never", json=body, headers=lathe.admin), status)
    check_refused(lathe.client.get("/indexes/never"), 404)


def test_invalid_index_names_are_refused(lathe, unchanged):
    for name, status in {"none": 400, "a b": 400, "a%0A": 400, "..%2F..%2Fetc": 404}.items():
        check_refused(lathe.client.put(f"/indexes/{name}", json={"chain": "none"}, headers=lathe.admin), status)
    assert {"none", "a b", "a\n"}.isdisjoint(entry["name"] for entry in lathe.client.get("/indexes").json())


@pytest.mark.parametrize("name", ["nobody", ".lock", "%00"])
def test_every_call_on_an_unknown_index_is_answered_404(lathe, name):
    for answer in answers(lathe, name, "GET", "DELETE", "POST"):
        check_refused(answer, 404)


def test_search_finds_nothing_for_unmatched_filters_and_all_items_for_a_large_k(lathe, unchanged):
    for wanted in ({"nobody": 1}, {"place": "1"}, {"place": {"gt": 1}}, {"": 1}, {"x" * 10_000: {"in": [1]}}):
        answer = lathe.client.post(f"{PATH}/search", json=find(filter=wanted))
        assert (answer.status_code, answer.json()["results"]) == (200, [[]]), answer.text
    assert len(lathe.client.post(f"{PATH}/search", json=find(k=10_000)).json()["results"][0]) == 6


@pytest.mark.parametrize("call", ["upsert", "search"])
def test_a_call_on_an_index_deleted_meanwhile_is_answered_200_404_409_or_closing(lathe, sentences, call):
    path = "/indexes/doomed"
    lathe.client.put(path, json={"chain": "compact"}, headers=lathe.admin)
    body = {"texts": [f"{text} {place}" for text in sentences for place in range(20)]}
    body |= {"ids": [f"s{place}" for place in range(120)]} if call == "upsert" else {}
    with ThreadPoolExecutor() as pool:
        late = pool.submit(lathe.client.post, f"{path}/{call}", json=body)
        time.sleep(0.1)  # its texts are being encoded
        assert lathe.client.delete(path, headers=lathe.admin).status_code == 200
        answer = late.result()
    assert answer.status_code in (200, 404, 409) or answer.json()["error"]["code"] == "closing", answer.text
    check_refused(lathe.client.get(path), 404)


def test_an_index_owned_by_another_process_is_answered_409_and_others_serve(lathe, request):
    """The other process takes the lock before the index is there: the server may open what it finds at any time."""
    lock = lathe.settings.home / "indexes" / ".copied.lock"
    hold = "import sys, filelock as f; lock = f.FileLock(sys.argv[1], mode=0o600); lock.acquire(); print(1); input()"
    command = [sys.executable, "-u", "-c", hold, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        owner.stdout.readline()
        request.getfixturevalue("copied")
        for answer in answers(lathe, "copied", "GET", "DELETE", "POST"):
            error = check_refused(answer, 409)
            assert "one process owns an index" in error["message"] and error["code"] == "index_owned_elsewhere"
        check_listed(lathe, "owned elsewhere")
        owner.communicate(b"\n")
    assert lathe.client.get("/indexes/copied").json()["count"] == 6


@pytest.mark.parametrize(
    ("damage", "code", "reason"),
    [("newer", "newer_schema", "upgrade Lathe"), ("garbage", "corrupt_index", "cannot be read")],
)
def test_an_index_whose_record_cannot_be_read_is_answered_503_and_other_indexes_serve(
    lathe, copied, damage, code, reason
):
    if damage == "newer":
        with closing(sqlite3.connect(copied / "record.db")) as record:
            record.execute("PRAGMA user_version = 99")
    else:
        (copied / "record.db").write_bytes(b"not a record" * 1000)
    for answer in answers(lathe, "copied", "GET", "POST"):
        error = check_refused(answer, 503)
        assert reason in error["message"] and error["code"] == code
    check_listed(lathe, "unavailable")


def check_listed(lathe, state):
    listed = {entry["name"]: entry for entry in lathe.client.get("/indexes").json()}
    assert listed["copied"]["state"] == state and len(listed["copied"]["error"]) > 10
    assert listed[PATH.split("/")[-1]]["state"] == "ready"
    assert lathe.client.post(f"{PATH}/search", json=find()).status_code == 200
