import base64
import io

import numpy as np
import pytest

NPY = "application/x-npy"
ENCODER = "all-MiniLM-L6-v2"
WIDTHS = {"bytes": 24, "bits": 20}
CHAINS = {
    "bytes": [{"kind": "r2"}, {"kind": "geopres", "dimensions": 24, "steps": 5}, {"kind": "int8"}],
    "bits": [{"kind": "r2"}, {"kind": "geopres", "dimensions": 20, "steps": 5}, {"kind": "binary"}],
}
FORMS = {"bytes": (np.int8, 24), "bits": (np.uint8, 3)}


@pytest.fixture(scope="module")
def app(start_app, new_home):
    with start_app(home=new_home()) as app:
        yield app


@pytest.fixture(scope="module")
def texts(paragraphs):
    return paragraphs[:160]


@pytest.fixture(scope="module")
def raw(app, texts):
    return np.array(app.client.post("/embed", json={"inputs": texts}).json(), dtype=np.float32)


@pytest.fixture(scope="module")
def jobs(app, texts, finish):
    """Fit the quantized chains, and return each one's finished job by chain name."""
    started = {}
    for name, steps in CHAINS.items():
        body = {"name": name, "steps": steps, "source": {"texts": texts}, "transform": True, "serve_dimensions": True}
        answer = app.client.post("/fit-transform", json=body, headers=app.admin)
        assert answer.status_code == 202, answer.text
        started[name] = answer.json()["job_id"]
    return {name: finish(job_id, app) for name, job_id in started.items()}


@pytest.fixture(params=CHAINS)
def name(request, jobs):
    assert jobs[request.param]["state"] == "succeeded", jobs[request.param]["error"]
    return request.param


@pytest.fixture
def chain(app, name):
    return app.services.registry.load(name).chain


def npy_of(answer):
    assert answer.status_code == 200 and answer.headers["content-type"] == NPY
    return np.load(io.BytesIO(answer.content))


def reduce(app, rows, name, **headers):
    body = {"vectors": rows.tolist(), "chain": name}
    return app.client.post("/reduce", json=body, headers=headers)


def floats_of(app, rows, name):
    return np.array(reduce(app, rows, name).json()["vectors"], dtype=np.float32)


def test_a_fit_to_codes_is_certified_with_their_bytes_and_its_transformed_vectors_are_codes(app, jobs, name, raw):
    result = jobs[name]["result"]
    assert result["certificate"]["bytes_per_vector"] == {"before": 4 * 384, "after": FORMS[name][1]}
    assert 0 < result["certificate"]["recall_at_10"] <= 1
    assert result["promoted"]
    codes = npy_of(app.client.get(result["vectors_url"]))
    assert (codes.dtype, codes.shape) == (FORMS[name][0], (len(raw), FORMS[name][1]))
    assert np.mean(codes == npy_of(reduce(app, raw, name, accept=NPY))) > 0.98


def test_reduce_answers_dequantized_floats_as_json_and_codes_as_npy_with_the_same_headers(app, name, chain, raw):
    answer, coded = reduce(app, raw, name), reduce(app, raw, name, accept=NPY)
    found = np.array(answer.json()["vectors"], dtype=np.float32)
    assert found.shape == (len(raw), WIDTHS[name]) and answer.json()["dimensions"] == WIDTHS[name]
    np.testing.assert_allclose(found, chain.dequantize(chain.fold().transform(raw)), atol=1e-6)
    assert all(len(np.unique(column)) <= (256 if name == "bytes" else 2) for column in found.T)
    codes = npy_of(coded)
    dtype, width = FORMS[name]
    assert (codes.dtype, codes.shape) == (dtype, (len(raw), width))
    np.testing.assert_allclose(chain.dequantize(codes), found, atol=1e-6)
    assert len(np.unique(codes, axis=0)) > len(codes) / 2
    for header in ("x-space-id", "x-chain", "x-dimensions"):
        assert answer.headers[header] == coded.headers[header]
    assert coded.headers["x-dimensions"] == str(WIDTHS[name]) and coded.headers["x-chain"] == f"{name}@1"
    zeros = np.zeros((2, 384), np.float32)
    assert not floats_of(app, zeros, name).any()
    assert not chain.dequantize(npy_of(reduce(app, zeros, name, accept=NPY))).any()


def test_a_quantized_chain_is_served_at_its_own_size_only(app, name, texts, raw):
    size = WIDTHS[name]
    by_size = app.client.post("/embed", json={"inputs": texts[:2], "dimensions": size})
    assert by_size.headers["x-chain"] == f"{name}@1" and np.shape(by_size.json()) == (2, size)
    for path, body in [
        ("/embed", {"inputs": "x", "chain": name}),
        ("/reduce", {"vectors": raw[:1].tolist(), "chain": name}),
    ]:
        answer = app.client.post(path, json=body | {"dimensions": size - 1})
        assert answer.status_code == 400 and f"only {size}" in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def budget(app, texts, finish):
    """Fit a chain to 20 bytes per vector, with queries that could weight it, and return its certificate."""
    queries = {"texts": [" ".join(text.split()[:6]) for text in texts[:40]]}
    body = {"name": "budget", "steps": [{"kind": "r2"}], "bytes": 20, "source": {"texts": texts}, "queries": queries}
    answer = app.client.post("/fit-transform", json=body, headers=app.admin)
    assert answer.status_code == 202, answer.text
    job = finish(answer.json()["job_id"], app)
    assert job["state"] == "succeeded", job["error"]
    return job["result"]["certificate"]


def test_a_fit_with_a_byte_budget_is_certified_with_its_bytes_and_without_queries_that_weight_nothing(app, budget):
    assert budget["bytes_per_vector"] == {"before": 4 * 384, "after": 20}
    assert budget["codes"]["query_count"] == 0  # λ is 0: too few texts to choose another
    assert budget["recall_at_10"] > 0.3
    (version,) = app.client.get("/chains/budget").json()["versions"]
    assert [step["kind"] for step in version["steps"]] == ["r2", "codes"]


def test_query_floats_score_documents_as_the_quantizer_does(app, budget, raw):
    """JSON and .npy requests with `input_type=query` agree. Another `input_type` is refused."""
    chain = app.services.registry.load("budget").chain
    body = {"vectors": raw[:9].tolist(), "chain": "budget", "input_type": "query"}
    queries = np.array(app.client.post("/reduce", json=body).json()["vectors"], np.float32)
    documents, codes = floats_of(app, raw, "budget"), npy_of(reduce(app, raw, "budget", accept=NPY))
    assert codes.dtype == np.uint8 and codes.shape == (len(raw), 20)
    np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(queries @ documents.T, chain.quantizer.score(queries, codes), atol=1e-4)
    assert np.mean(codes == chain.transform(raw)) > 0.98
    same = app.client.post("/reduce", json=body, headers={"accept": NPY})
    np.testing.assert_array_equal(npy_of(same), queries)
    buffer = io.BytesIO()
    np.save(buffer, raw[:9])
    headers = {"content-type": NPY, "accept": NPY}
    asked = app.client.post("/reduce?chain=budget&input_type=query", content=buffer.getvalue(), headers=headers)
    np.testing.assert_array_equal(npy_of(asked), queries)
    wrong = app.client.post("/reduce?chain=budget&input_type=both", content=buffer.getvalue(), headers=headers)
    assert wrong.status_code == 400 and "one of query, document" in wrong.json()["error"]["message"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"bytes": 385}, "codes of 385 bytes needs more dimensions than 384"),
        ({"steps": [{"kind": "int8"}], "bytes": 9}, "int8 outputs codes, which codes cannot follow"),
        ({"steps": [{"kind": "r2"}], "queries": {"texts": ["x"]}}, "no step is fitted on queries"),
        ({"bytes": 9, "queries": {"vectors": [[1.0, 2.0]]}}, "the queries have 2 dimensions, the fitted vectors 384"),
    ],
)
def test_fit_transform_refuses_an_impossible_byte_budget_before_queueing(app, texts, more, message):
    before = app.client.get("/jobs").json()
    body = {"name": "no", "source": {"texts": texts}} | more
    answer = app.client.post("/fit-transform", json=body, headers=app.admin)
    assert answer.status_code == 400, answer.text
    assert message in answer.text
    assert app.client.get("/jobs").json() == before


DTYPES = {
    "float": np.float32,
    "float16": np.float16,
    "int8": np.int8,
    "uint8": np.uint8,
    "binary": np.int8,
    "ubinary": np.uint8,
}


def test_every_vector_route_answers_each_output_dtype_with_its_header(app, name, texts, raw):
    own = FORMS[name][0]
    for dtype, expected in {**DTYPES, "codes": own}.items():
        asked = {"output_dtype": dtype}
        body = {"inputs": texts[:3], "chain": name} | asked
        answer = app.client.post("/embed", json=body, headers={"accept": NPY})
        found = npy_of(answer)
        assert found.dtype == expected and len(found) == 3, dtype
        assert (answer.headers["x-output-dtype"], answer.headers["x-input-type"]) == (dtype, "document")
        assert answer.headers["x-dimensions"] == str(WIDTHS[name])
        listed = app.client.post("/embed", json=body).json()
        np.testing.assert_allclose(listed, np.float64(found), rtol=1e-6)
        if not dtype.startswith("float"):
            assert all(type(number) is int for row in listed for number in row)
        rows = app.client.post("/embed", json=body | {"encoding_format": "base64"}).json()
        assert [base64.b64decode(row) for row in rows] == [row.tobytes() for row in found]
        body = {"input": texts[:3], "model": f"{ENCODER}+{name}"} | asked
        assert [item["embedding"] for item in app.client.post("/v1/embeddings", json=body).json()["data"]] == listed
        body = {"vectors": raw[:3].tolist(), "chain": name} | asked
        reduced = app.client.post("/reduce", json=body)
        assert reduced.headers["x-output-dtype"] == dtype
        same = npy_of(app.client.post("/reduce", json=body, headers={"accept": NPY}))
        np.testing.assert_allclose(reduced.json()["vectors"], np.float64(same), rtol=1e-6)
        if dtype.startswith("float"):
            np.testing.assert_allclose(same, found, atol=1e-2)
        else:
            assert np.mean(same == found) > 0.9  # a rounding of float32 may tip a byte by one


def test_reduce_answers_npy_as_codes_by_default_and_as_floats_if_output_dtype_asks_for_them(app, name, raw):
    """An unknown output_dtype is answered 400."""
    buffer = io.BytesIO()
    np.save(buffer, raw)
    headers = {"content-type": NPY, "accept": NPY}

    def ask(more):
        return app.client.post(f"/reduce?chain={name}{more}", content=buffer.getvalue(), headers=headers)

    plain = ask("")
    assert plain.headers["x-output-dtype"] == "codes"
    np.testing.assert_array_equal(npy_of(plain), npy_of(ask("&output_dtype=codes")))
    floats = npy_of(ask("&output_dtype=float"))
    assert floats.dtype == np.float32
    np.testing.assert_allclose(floats, floats_of(app, raw, name))
    wrong = ask("&output_dtype=int4")
    assert wrong.status_code == 400 and "output_dtype must be one of float" in wrong.json()["error"]["message"]


def test_texts_with_input_type_or_prompt_query_get_unquantized_floats(app, budget, texts, raw):
    """`input_type` takes precedence over `prompt_name`. The space id is that of documents."""
    body = {"vectors": raw[:4].tolist(), "chain": "budget", "input_type": "query"}
    expected = app.client.post("/reduce", json=body).json()["vectors"]
    document = app.client.post("/embed", json={"inputs": texts[:4], "chain": "budget"})
    for more in ({"input_type": "query"}, {"prompt_name": "query"}):
        answer = app.client.post("/embed", json={"inputs": texts[:4], "chain": "budget"} | more)
        assert answer.headers["x-input-type"] == "query"
        assert answer.headers["x-space-id"] == document.headers["x-space-id"]
        np.testing.assert_allclose(answer.json(), expected, atol=1e-5)
    body = {"input": texts[:4], "model": f"{ENCODER}+budget", "input_type": "query"}
    rows = [item["embedding"] for item in app.client.post("/v1/embeddings", json=body).json()["data"]]
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    both = {"prompt_name": "query", "input_type": "document"}
    answer = app.client.post("/embed", json={"inputs": texts[:4], "chain": "budget"} | both)
    assert answer.headers["x-input-type"] == "document"
    np.testing.assert_allclose(answer.json(), document.json(), atol=1e-5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"output_dtype": "codes", "chain": "compact"}, "(chain: compact@1)"),
        ({"output_dtype": "codes", "chain": "budget", "input_type": "query"}, "queries have no codes"),
        ({"output_dtype": "int4"}, "'float', 'float16', 'int8'"),
        ({"output_dtype": "uint8", "normalize": False}, "norm 1, or a chain that ends in int8"),
    ],
)
def test_an_impossible_output_dtype_is_answered_400_with_the_reason(app, budget, more, message):
    answer = app.client.post("/embed", json={"inputs": "a text"} | more)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "output_dtype", answer.text
    assert message in answer.json()["error"]["message"]
