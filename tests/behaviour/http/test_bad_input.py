import codecs
import io
import json

import numpy as np
import pytest

from lathe.service.errors import BadValueError

BAD_BODIES = {
    "empty list": ("/embed", {"inputs": []}, 400),
    "empty text among others": ("/embed", {"inputs": ["a", ""]}, 400),
    "10,000 texts": ("/embed", {"inputs": ["text"] * 10_000}, 413),
    "no inputs": ("/embed", {}, 422),
    "a number for a text": ("/embed", {"inputs": 5}, 422),
    "an unknown chain": ("/embed", {"inputs": "a", "chain": "nobody"}, 404),
    "an unknown version": ("/embed", {"inputs": "a", "chain": "compact@99"}, 404),
    "raw vectors cut": ("/embed", {"inputs": "a", "chain": "none", "dimensions": 100}, 400),
    "an unknown model": ("/embed", {"inputs": "a", "model": "nobody"}, 404),
    "an unknown prompt": ("/embed", {"inputs": "a", "prompt_name": "nobody"}, 400),
    "size zero": ("/embed", {"inputs": "a", "dimensions": 0}, 400),
    "a size that is a text": ("/embed", {"inputs": "a", "dimensions": "128"}, 422),
    "a size a chain does not serve": ("/embed", {"inputs": "a", "chain": "debias", "dimensions": 12}, 400),
    "an unknown side": ("/embed", {"inputs": "a", "truncation_direction": "up"}, 400),
    "an unknown encoding": ("/embed", {"inputs": "a", "encoding_format": "int4"}, 400),
    "a text for a truth": ("/embed", {"inputs": "a", "normalize": "yes"}, 422),
    "a vector written as a text": ("/embed", {"inputs": ["a", str([0.5] * 16)]}, 400),
    "openai: empty list": ("/v1/embeddings", {"input": []}, 400),
    "no vectors": ("/reduce", {"vectors": [], "chain": "compact"}, 400),
    "vectors of no width": ("/reduce", {"vectors": [[]], "chain": "compact"}, 422),
    "the wrong width": ("/reduce", {"vectors": [[1.0, 2.0]], "chain": "compact"}, 422),
    "ragged vectors": ("/reduce", {"vectors": [[1.0], [1.0, 2.0]], "chain": "compact"}, 422),
    "one flat vector": ("/reduce", {"vectors": [1.0] * 384, "chain": "compact"}, 422),
    "vectors of texts and numbers": ("/reduce", {"vectors": [[1.0] * 383 + ["a"]], "chain": "compact"}, 422),
    "vectors of truths and numbers": ("/reduce", {"vectors": [[0.5] * 383 + [True]], "chain": "compact"}, 422),
    "lists and base64": ("/reduce", {"vectors": [[0.5] * 384, "AAAA"], "chain": "compact"}, 422),
    "numbers beyond float32": ("/reduce", {"vectors": [[1e39] * 384], "chain": "compact"}, 400),
    "numbers at the edge of float32": ("/reduce", {"vectors": [[3e38] * 384], "chain": "compact"}, 400),
    "8,193 vectors": ("/reduce", {"vectors": [[0.0]] * 8193, "chain": "compact"}, 413),
    "no chain": ("/reduce", {"vectors": [[1.0] * 384]}, 422),
    "reduce: unknown chain": ("/reduce", {"vectors": [[1.0] * 384], "chain": "nobody"}, 404),
    "reduce: a size not served": ("/reduce", {"vectors": [[1.0] * 384], "chain": "compact", "dimensions": 129}, 400),
}

R2 = [{"kind": "r2"}]
MANY_GATES = {"version": 1, "gates": dict.fromkeys(map(str, range(200_000)), "")}
WIDE = [[place] + [0.5] * 20_000 for place in range(10)]
LONG_TEXT = [["a" * 250_000, *[1] * 5000]]
AS_JSON = {"content-type": "application/json"}
HUNGRY = {
    "a long text among numbers": ("/reduce", {"vectors": LONG_TEXT, "chain": "compact"}, 422),
    "the same to fit on": ("/fit-transform", {"name": "a", "steps": R2, "source": {"vectors": LONG_TEXT}}, 422),
    "numbers for texts": ("/embed", {"inputs": [0] * 500_000}, 422),
    "numbers for ids": ("/indexes/hungry/get", {"ids": [0] * 500_000}, 422),
    "numbers for steps": ("/fit-transform", {"name": "a", "steps": [0] * 500_000, "source": {"texts": []}}, 422),
    "texts for gates": ("/chains/compact/promote", MANY_GATES, 422),
    "empty lists": ("/embed", {"inputs": [[]] * 900_000}, 413),
    "vectors wider than any": ("/advise", {"source": {"vectors": WIDE}}, 422),
    "small objects": ("/embed", {"inputs": [{"": 0}] * 500_000}, 413),
}

MALFORMED = {
    "nothing": (b"", 400),
    "half an object": (b'{"inputs": "a"', 400),
    "NaN": (b'{"inputs": "a", "dimensions": NaN}', 400),
    "1e999": (b'{"inputs": "a", "dimensions": 1e999}', 400),
    "too deep": (b"[" * 100_000, 400),
    "a list": (b"[]", 422),
    "null": (b"null", 422),
    "a key twice, of which the last counts": (b'{"inputs": "a", "inputs": 5}', 422),
}


def check_error(answer, status):
    """Assert an answer's status, and that its body is an error in the documented shape."""
    assert answer.status_code == status, answer.text[:300]
    body = answer.json()
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert body["error_type"]
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("case", BAD_BODIES)
def test_an_invalid_body_is_answered_with_its_status_and_an_error(client, case):
    path, body, status = BAD_BODIES[case]
    check_error(client.post(path, json=body), status)


@pytest.mark.parametrize("case", MALFORMED)
def test_a_body_that_is_no_json_object_is_refused(client, case):
    body, status = MALFORMED[case]
    check_error(client.post("/embed", content=body), status)


def with_null(good, number=1234):
    return [good] * number + [None] + [good] * 10


NULLS = {
    "texts": ("/embed", {"inputs": with_null("a")}, "inputs[1234]"),
    "texts of OpenAI": ("/v1/embeddings", {"input": with_null("a")}, "input[1234]"),
    "token ids": ("/v1/embeddings", {"input": with_null([1, 2], 3)}, "input[3]"),
    "the first of the texts": ("/v1/embeddings", {"input": with_null("a", 0)}, "input[0]"),
    "sentences": (
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": with_null("a")}},
        "inputs.sentences[1234]",
    ),
    "texts of items": ("/indexes/hungry/upsert", {"ids": ["1"], "texts": with_null("a")}, "texts[1234]"),
    "ids": ("/indexes/hungry/upsert", {"ids": with_null("1"), "texts": ["a"]}, "ids[1234]"),
    "queries": ("/indexes/hungry/search", {"texts": with_null("a")}, "texts[1234]"),
    "texts to fit on": (
        "/fit-transform",
        {"name": "a", "steps": R2, "source": {"texts": with_null("a")}},
        "source.texts[1234]",
    ),
    "a number": ("/embed", {"inputs": ["a"] * 7 + [5]}, "inputs[7]"),
}


@pytest.mark.parametrize("case", NULLS)
def test_a_null_or_a_number_among_texts_is_refused_with_its_position(lathe, hungry_index, case):
    path, body, place = NULLS[case]
    answer = lathe.client.post(path, json=body, headers=lathe.admin)
    check_error(answer, 422)
    error = answer.json()["error"]
    got = "" if case == "a number" else ", got null"
    kind = "list" if case == "token ids" else "string"
    assert error["message"] == f"{place}: Input should be a valid {kind}{got}"
    assert error["param"] == place.replace("[", ".").replace("]", "")


NOT_UNICODE = {
    "a surrogate": (rb'{"inputs": ["\ud83d\ude00", "a\ud800b"]}', "surrogate"),
    "latin-1": (b'{"inputs": ["ok", "\xe9"]}', "byte 0xe9 at 19 is not UTF-8"),
    "UTF-16": ('{"inputs": "é"}'.encode("utf-16"), "byte 0xff at 0 is not UTF-8"),
}


@pytest.mark.parametrize("case", NOT_UNICODE)
def test_a_body_that_is_not_unicode_is_refused_with_the_position(client, case):
    body, damage = NOT_UNICODE[case]
    answer = client.post("/embed", content=body, headers=AS_JSON)
    check_error(answer, 400)
    message = answer.json()["error"]["message"]
    assert message.startswith("the body is not JSON: ") and damage in message, message


def test_a_byte_order_mark_before_a_body_is_ignored(client):
    body = b'{"inputs": 5, "inputs": "x"}'
    answers = [client.post("/embed", content=bom + body, headers=AS_JSON).json() for bom in (b"", codecs.BOM_UTF8)]
    assert answers[0] == answers[1] and len(answers[0][0]) == 384
    check_error(client.post("/embed", content=2 * codecs.BOM_UTF8 + body, headers=AS_JSON), 400)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/embeddings", "/v1/embeddings"),
        ("/v1//embeddings", "/v1/embeddings"),
        ("/v1/embed", "/embed"),
        ("/models", "/v1/models"),
        ("/rerank", None),
        ("/", None),
        ("/" + "embed" * 1000, None),
    ],
)
def test_an_unknown_path_names_the_route_with_the_same_end(client, path, meant):
    answer = client.request("PROPFIND" if path == "/" else "GET" if path == "/models" else "POST", path)
    message = answer.json()["error"]["message"]
    assert answer.status_code in (404, 405)
    assert message.endswith(f"; did you mean {meant}?") if meant else "did you mean" not in message


@pytest.fixture(scope="module")
def hungry_index(lathe):
    assert lathe.client.put("/indexes/hungry", json={"chain": "none"}, headers=lathe.admin).status_code == 200
    yield
    lathe.client.delete("/indexes/hungry", headers=lathe.admin)


@pytest.mark.parametrize("case", HUNGRY)
def test_a_body_whose_parsed_form_would_be_huge_is_refused(lathe, hungry_index, case):
    """`bounded_memory` asserts that each refusal takes little memory."""
    path, body, status = HUNGRY[case]
    content = json.dumps(body, separators=(",", ":")).encode()
    check_error(lathe.client.post(path, content=content, headers=lathe.admin | AS_JSON), status)


def test_get_and_search_refuse_responses_that_repeat_a_large_item_too_often(lathe, hungry_index):
    """`bounded_memory` asserts that each refusal takes little memory."""
    item = {"ids": ["big"], "vectors": [[1.0] * 384], "metadata": [{"a": "x" * 200_000}]}
    assert lathe.client.post("/indexes/hungry/upsert", json=item, headers=lathe.admin).status_code == 200
    asked = {"vectors": [[1.0] + [0.0] * 383] * 400, "k": 1}
    for path, most, few in (
        ("get", {"ids": ["big"] * 400}, {"ids": ["big"] * 10}),
        ("get", {"ids": ["big"] * 8000, "vectors": True}, {"ids": ["big"], "vectors": True}),
        ("search", asked, asked | {"vectors": asked["vectors"][:10]}),
    ):
        check_error(lathe.client.post(f"/indexes/hungry/{path}", json=most), 413)
        assert lathe.client.post(f"/indexes/hungry/{path}", json=few).status_code == 200


LONG = "n" * 5000


def test_a_long_error_message_is_shortened_in_the_middle():
    assert (
        BadValueError(f"no chain {LONG} here; there are a, b").message == f"no chain {LONG[:80]}… here; there are a, b"
    )
    message = BadValueError("no chain " + "of words " * 100_000 + "; there are a, b").message
    assert len(message) < 2100 and message.startswith("no chain of") and message.endswith("there are a, b")


@pytest.mark.parametrize(("depth", "status"), [(1000, 422), (5000, 400)])
def test_deeply_nested_json_is_answered_400_or_422(lathe, depth, status):
    deep = b"[" * depth + b"]" * depth
    check_error(lathe.client.post("/embed", content=b'{"inputs": %b}' % deep), status)
    fit = b'{"name": "a", "steps": [{"kind": "r2", "deep": %b}], "source": {"texts": ["a"]}}' % deep
    check_error(lathe.client.post("/fit-transform", content=fit, headers=lathe.admin | AS_JSON), 400)


def test_a_body_over_the_limit_is_413_whether_announced_or_streamed(client):
    check_error(client.post("/embed", content=b"x" * 33_000_000), 413)
    check_error(client.post("/reduce", content=(b"x" * 1_000_000 for _ in range(33))), 413)


def test_reduce_maps_zero_vectors_to_zero_without_affecting_other_rows(client, raw):
    vectors = np.zeros((4, 384))
    vectors[1] = raw[0]
    vectors[3] = 1e-45  # as good as zero: float32 holds nothing smaller
    answer = client.post("/reduce", json={"vectors": vectors.tolist(), "chain": "compact"})
    reduced = np.array(answer.json()["vectors"])
    assert answer.status_code == 200
    assert not reduced[[0, 2, 3]].any()
    np.testing.assert_allclose(np.linalg.norm(reduced[1]), 1, atol=1e-6)


def test_unknown_routes_methods_and_names_are_answered_with_the_error_shape(client):
    check_error(client.get("/nothing/here"), 404)
    check_error(client.get("/embed"), 405)
    check_error(client.get("/jobs/nobody"), 404)
    check_error(client.get("/jobs/" + "a" * 300), 404)
    check_error(client.post("/chains/compact"), 405)
    assert client.post("/chains/compact").headers["allow"]
    assert client.head("/health/ready").status_code == 200
    check_error(client.get("/jobs/../../etc/passwd"), 404)
    check_error(client.get("/chains/nobody"), 404)


def test_fit_transform_refuses_invalid_requests_and_queues_no_job(lathe, sentences):
    good = {"name": "bad", "steps": [{"kind": "r2"}], "source": {"texts": sentences}}
    refused = {
        400: [
            {"name": "none"},
            {"steps": [{"kind": "geopres", "dimensions": 384}]},
            {"steps": [{"kind": "geopres", "dimensions": 96, "steps": 10**15}]},
            {"steps": [{"kind": "r2"}] * 100_000},
            {"seed": 2**63},
            {"source": {}},
            {"source": {"texts": ["a", "b", "c", "d", " "]}},
            {"source": {"texts": ["a", "b", "a", "b"]}},
            {"source": {"vectors": [[1.0, 2.0]] * 50}},
            {"gates": {"nobody": 0.5}},
        ],
        403: [{"source": {"path": "../secret.jsonl"}}],
        404: [{"encoder": "nobody"}, *[{"source": {"path": path}} for path in ("missing.jsonl", "a\0b", "loop")]],
        409: [{"source": {"vectors": [[1.0, 2.0]]}, "encoder": "all-MiniLM-L6-v2"}],
        422: [{"steps": "r2"}, {"source": {"vectors": [[1.0], [1.0, 2.0]]}}, {"gates": {"local_spearman": "high"}}],
    }
    (lathe.settings.data_root / "loop").symlink_to("loop")
    before = lathe.client.get("/jobs").json()
    for status, changes in refused.items():
        for change in changes:
            check_error(lathe.client.post("/fit-transform", json=good | change, headers=lathe.admin), status)
    assert lathe.client.get("/jobs").json() == before


def test_reduce_refuses_malformed_npy_bodies(client):
    def post(content, query="?chain=compact"):
        return client.post(f"/reduce{query}", content=content, headers={"content-type": "application/x-npy"})

    good = npy(np.ones((2, 384), np.float32))
    assert post(good).status_code == 200
    check_error(post(good, query=""), 400)
    check_error(post(good, query="?chain=compact&dimensions=x"), 422)
    check_error(post(good, query="?chain=compact&dimensions=0"), 400)
    check_error(post(good, query="?chain=compact&dimensions=" + "1" * 5000), 422)
    check_error(post(b"not npy"), 400)
    check_error(post(good[:-4]), 400)
    check_error(post(good + b"more"), 400)
    check_error(post(npy(np.full((1, 384), np.nan, np.float32))), 400)
    check_error(post(npy(np.ones((2, 3), np.float32))), 422)
    check_error(post(npy(np.ones(384, np.float32))), 422)
    check_error(post(npy(np.float32(1))), 422)
    check_error(post(npy(np.ones((2, 384), np.int64))), 422)
    check_error(post(npy(np.ones((0, 384), np.float32))), 400)
    check_error(post(npy(np.ones((2, 0), np.float32))), 422)
    check_error(post(npy_header("(0, 100000000000000000000)")), 400)
    check_error(post(npy_header("(100000000000000000000, 0)")), 413)
    check_error(post(npy_header(f"{(1,) * 65}") + bytes(4)), 422)
    check_error(post(good.replace(b"(2, 384)", b"(2, 38<<")), 400)
    check_error(post(good.replace(b"(2, 384), }            ", b"(99999999999999, 384), }")), 400)
    check_error(post(good.replace(b"(2, 384)", b"(-2,384)")), 400)
    check_error(post(npy_header("(True, 384)") + bytes(1536)), 422)
    pickled = npy(np.array([{"a": 1}], dtype=object), allow_pickle=True)
    check_error(post(pickled), 422)


def npy_header(shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def npy(array, allow_pickle=False):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=allow_pickle)
    return buffer.getvalue()


def test_errors_do_not_contain_the_callers_text(client):
    secret = "the quick brown secret"
    answer = client.post("/embed", json={"inputs": [secret, ""]})
    assert secret not in json.dumps(answer.json())
