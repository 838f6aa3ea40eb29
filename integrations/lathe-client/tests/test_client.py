"""Both clients against a server behind httpx2's transport: what is sent, split, tried again and raised."""

import asyncio
import io
import json
import pickle

import httpx2
import numpy as np
import pytest
from lathe_client import (
    AsyncClient,
    Client,
    InvalidTextError,
    NoAnswerError,
    Retries,
    SearchEmbedder,
    ServerError,
    SpaceMismatchError,
    UnexpectedAnswerError,
    batches,
    calls,
)

KEY = "secret-key-of-mine"
AT_ONCE = Retries(tries=3, first_delay=0.0)


def npy(rows, space="space-a", **headers):
    """Return a response with vectors, as `/embed` and `/reduce` give them."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(rows, np.float32))
    named = {"x-space-id": space, "x-chain": "compact@1", "x-input-type": "document", "x-output-dtype": "float"}
    return httpx2.Response(200, content=buffer.getvalue(), headers=named | headers)


def error(status, message="wrong", code="wrong_value", **headers):
    """Return a response with Lathe's error."""
    content = {"error": {"message": message, "type": "t", "param": "inputs", "code": code}, "error_type": "Validation"}
    return httpx2.Response(status, json=content, headers={"x-request-id": "r-1"} | headers)


class Server:
    """Answers requests from a list, or by a function.

    Remembers them.
    """

    def __init__(self, *answers, script=None):
        self.answers, self.script, self.requests = list(answers), script, []

    def __call__(self, request):
        self.requests.append(request)
        answer = self.script(request) if self.script else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def bodies(self):
        return [json.loads(request.content) for request in self.requests]


def echo(request):
    """Answer each text with its length, each vector with itself."""
    if request.headers["content-type"] == "application/x-npy":
        return npy(np.load(io.BytesIO(request.content)))
    texts = json.loads(request.content)["inputs"]
    return npy([[len(text)] for text in texts], **{"x-tokens": str(len(texts)), "x-tokens-cut": "1"})


class InEventLoop:
    """Runs each call of an `AsyncClient` in one event loop, so that both clients are tested by the same tests."""

    def __init__(self, client):
        self.client, self.loop = client, asyncio.new_event_loop()

    def __getattr__(self, name):
        return lambda *args, **options: self.loop.run_until_complete(getattr(self.client, name)(*args, **options))

    def __repr__(self):
        return repr(self.client)

    def close(self):
        self.loop.run_until_complete(self.client.aclose())
        self.loop.close()


@pytest.fixture(params=["Client", "AsyncClient"])
def connect(request):
    """Return a function that opens the synchronous or the asynchronous client of a server."""
    opened = []

    def open_one(server, **settings):
        settings = {"retries": AT_ONCE, "transport": httpx2.MockTransport(server)} | settings
        client = Client(**settings) if request.param == "Client" else InEventLoop(AsyncClient(**settings))
        opened.append(client)
        return client

    yield open_one
    for client in opened:
        client.close()


synchronous = pytest.mark.parametrize("connect", ["Client"], indirect=True)
"""For what both clients leave to the same functions: the requests, the answers and the errors."""


def test_embedding_sends_the_servers_fields_and_returns_vectors_with_their_space(connect):
    server = Server(npy([[1, 2]], **{"x-tokens": "7", "x-tokens-cut": "0"}))
    options = {"model": "e5", "chain": "mine@2", "dimensions": 64, "input_type": "query", "normalize": False}
    found = connect(server, api_key=KEY).embed("a text", **options, prompt_name=None)
    assert server.bodies == [{"inputs": ["a text"], "output_dtype": "float"} | options]
    (request,) = server.requests
    assert (request.url.path, request.headers["accept"]) == ("/embed", "application/x-npy")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    np.testing.assert_array_equal(found.vectors, np.float32([[1, 2]]))
    assert (found.vectors.dtype, len(found), found.space_id, found.chain) == (np.float32, 1, "space-a", "compact@1")
    assert (found.tokens, found.tokens_cut) == (7, 0)


@synchronous
def test_an_address_with_a_path_keeps_it(connect):
    server = Server(npy([[1]]))
    connect(server, url="http://gateway/lathe/").embed("x")
    assert str(server.requests[0].url) == "http://gateway/lathe/embed"


def test_many_texts_are_sent_in_batches_and_answered_in_order(connect):
    server = Server(script=echo)
    found = connect(server, batch_size=4).embed(["x" * length for length in range(1, 11)])
    assert [len(body["inputs"]) for body in server.bodies] == [4, 4, 2]
    assert found.vectors.ravel().tolist() == list(range(1, 11))
    assert (found.tokens, found.tokens_cut) == (10, 3)


@synchronous
def test_large_texts_and_vectors_are_split_by_bytes_and_one_text_is_never_divided(connect, monkeypatch):
    monkeypatch.setattr(batches, "MAX_BODY_BYTES", 100)
    server = Server(script=echo)
    client = connect(server)
    lengths = [40, 40, 40, 500, 10]  # the first two fit together, in UTF-8 one character takes two bytes
    assert client.embed(["é" * (length // 2) for length in lengths]).vectors.ravel().tolist() == [20, 20, 20, 250, 5]
    assert [len(body["inputs"]) for body in server.bodies] == [2, 1, 1, 1]
    rows = np.arange(60, dtype=np.float32).reshape(12, 5)
    np.testing.assert_array_equal(client.reduce(rows, "compact").vectors, rows)
    assert [len(np.load(io.BytesIO(request.content))) for request in server.requests[4:]] == [5, 5, 2]


def test_reduction_sends_an_npy_body_with_its_options_in_the_query(connect):
    server = Server(script=echo)
    rows = np.float64([[1, 2], [3, 4]])
    found = connect(server).reduce(rows, "mine@2", dimensions=1, input_type="query", output_dtype="int8")
    np.testing.assert_array_equal(found.vectors, rows)
    assert found.tokens is None
    (request,) = server.requests
    expected = {"chain": "mine@2", "dimensions": "1", "input_type": "query", "output_dtype": "int8"}
    assert (request.url.path, dict(request.url.params)) == ("/reduce", expected)


@synchronous
def test_batches_of_different_spaces_are_refused(connect):
    server = Server(npy([[1]], "space-a"), npy([[1]], "space-b"))
    with pytest.raises(SpaceMismatchError, match="space-a, space-b"):
        connect(server, batch_size=1).embed(["x", "y"])


@synchronous
def test_vectors_of_another_space_are_refused_on_request(connect):
    client = connect(Server(npy([[1]], "space-a"), npy([[1]], "space-a"), npy([[1]], "space-b")))
    one, same, other = (client.embed("x") for _ in range(3))
    one.require_space(same)
    one.require_space("space-a")
    with pytest.raises(SpaceMismatchError, match="space-a, space-b"):
        one.require_space(other)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_even_for_changes(connect, status):
    server = Server(error(status), error(status), httpx2.Response(200, json={"upserted": 1}))
    assert connect(server).upsert("docs", ["a"], ["text"]) == 1
    assert len(server.requests) == 3


def test_the_last_refusal_is_raised_with_the_servers_text(connect):
    server = Server(*[error(429, "the queues are full", "overloaded", **{"retry-after": "0"}) for _ in range(4)])
    with pytest.raises(ServerError, match="429 overloaded: the queues are full") as raised:
        connect(server).embed("x")
    assert (len(server.requests), raised.value.status, raised.value.retry_after) == (4, 429, 0.0)


@pytest.mark.parametrize(
    "broken", [httpx2.ConnectError("refused"), httpx2.ReadError("reset"), httpx2.ConnectTimeout("")]
)
def test_after_a_broken_connection_calls_that_change_nothing_are_sent_again(connect, broken):
    server = Server(broken, broken, npy([[1]]))
    assert len(connect(server).embed("x")) == 1
    for change in (
        lambda client: client.upsert("docs", ["a"], ["text"]),
        lambda client: client.delete_items("docs", ["a"]),
        lambda client: client.create_index("docs", chain="compact"),
        lambda client: client.delete_index("docs"),
    ):
        server = Server(broken)
        with pytest.raises(NoAnswerError, match="got no answer"):
            change(connect(server))
        assert len(server.requests) == 1


def test_an_answer_that_takes_too_long_is_not_asked_for_again(connect):
    server = Server(httpx2.ReadTimeout("no answer in 60 s"))
    with pytest.raises(NoAnswerError, match="/embed got no answer: no answer in 60 s"):
        connect(server).embed("x")
    assert len(server.requests) == 1


def test_other_error_statuses_are_raised_at_once_with_the_servers_text_and_code(connect):
    for status in (400, 409, 500, 502):
        server = Server(error(status, "inputs[0] is an empty text", "invalid_value"))
        with pytest.raises(ServerError) as raised:
            connect(server).embed("x")
        found = raised.value
        assert (found.status, found.code, found.param, found.request_id) == (status, "invalid_value", "inputs", "r-1")
        assert str(found) == f"{status} invalid_value: inputs[0] is an empty text"
        assert str(pickle.loads(pickle.dumps(found))) == str(found)
        assert len(server.requests) == 1


@synchronous
def test_errors_of_other_servers_on_the_way_are_raised_with_their_text(connect):
    for content in (b"<html>Bad Gateway</html>", b'{"error": "text"}', b"[1]"):
        with pytest.raises(ServerError) as raised:
            connect(Server(httpx2.Response(502, content=content))).embed("x")
        assert (str(raised.value), raised.value.code) == (f"502: {content.decode()}", None)


@synchronous
def test_an_answer_without_vectors_or_space_or_with_pickled_arrays_is_refused(connect):
    buffer = io.BytesIO()
    np.save(buffer, np.array([[object]]), allow_pickle=True)
    whole = npy([[1]])
    for answer in [
        {"content": b"<html>Welcome</html>"},
        {"json": [[1.0]]},
        {"content": whole.content[:-2], "headers": whole.headers},
        {"content": whole.content},
        {"content": buffer.getvalue(), "headers": whole.headers},
    ]:
        with pytest.raises(UnexpectedAnswerError, match="POST /embed: the answer is not one of a Lathe server"):
            connect(Server(httpx2.Response(200, **answer))).embed("x")


def test_an_answer_that_is_not_the_json_of_a_list_is_refused(connect):
    client = connect(Server(httpx2.Response(200, json=[]), httpx2.Response(200, json={"detail": "x"})))
    for call in (client.info, client.list_chains):
        with pytest.raises(UnexpectedAnswerError, match="where an? (object|list) should be"):
            call()


def test_the_delay_doubles_obeys_retry_after_and_gives_up_where_that_asks_for_too_long():
    retries = Retries(tries=5, first_delay=1.0, max_delay=10.0)
    call = calls.build_object_call("/info")
    for tried, most in enumerate([1.0, 2.0, 4.0, 8.0, 10.0]):
        assert most / 2 <= retries.choose_delay(call, error(503), tried) <= most
    assert retries.choose_delay(call, error(503), 5) is None
    assert 7.5 <= retries.choose_delay(call, error(429, **{"retry-after": "7"}), 0) <= 8
    assert retries.choose_delay(call, error(429, **{"retry-after": "11"}), 0) is None
    assert retries.choose_delay(call, error(429, **{"retry-after": "Fri, 31 Dec 2027 23:59:59 GMT"}), 0) <= 1


@synchronous
def test_the_key_is_in_no_representation_and_in_no_error(connect):
    client = connect(Server(httpx2.ConnectError("refused")), api_key=KEY, retries=Retries(0))
    with pytest.raises(NoAnswerError) as raised:
        client.embed("x")
    shown = [repr(client), repr(Client(api_key=KEY).connection), repr(SearchEmbedder(api_key=KEY)), repr(raised.value)]
    assert not [text for text in shown if KEY in text]
    for key in ("", f"{KEY}\n", f"{KEY} ", f"{KEY}é"):
        with pytest.raises(ValueError, match="api_key is empty, or holds") as refused:
            Client(api_key=key)
        assert KEY not in str(refused.value)


def test_addresses_that_are_not_http_or_have_a_password_are_refused():
    for url in ("localhost:8080", "ftp://host", "http://", "http://host:port", ""):
        with pytest.raises(ValueError, match="the address is"):
            Client(url)
    with pytest.raises(ValueError, match="give the server's key as api_key") as refused:
        Client("http://user:word@localhost:8080")
    assert "word@" not in str(refused.value)


@synchronous
def test_wrong_arguments_are_refused_before_anything_is_sent(connect):
    server = Server()
    client = connect(server)
    for call, kind, message in [
        (lambda: client.embed([]), ValueError, "texts must not be empty"),
        (lambda: client.embed("x", size=3), TypeError, "no option 'size'; there are: chain, dimensions"),
        (lambda: client.reduce([1.0, 2.0], "c"), ValueError, r"the shape \(n, d\).*not \(2,\)"),
        (lambda: client.reduce(np.empty((0, 3)), "c"), ValueError, r"not \(0, 3\)"),
        (lambda: client.search("docs"), ValueError, "either texts or vectors"),
        (lambda: client.search("docs", "x", [[1.0]]), ValueError, "either texts or vectors"),
        (lambda: client.upsert("docs", ["a", "b"], ["x"]), ValueError, "2 ids, 1 texts: give as many"),
        (lambda: client.upsert("docs", ["a"], ["x"], metadata=[]), ValueError, "1 texts, 0 metadata"),
        (lambda: client.upsert("docs", "ab", ["x", "y"]), TypeError, "must be a list of ids"),
        (lambda: client.delete_items("docs", "doc-12"), TypeError, "ids is the text 'doc-12'"),
        (lambda: client.delete_items("docs"), ValueError, "either ids or filter"),
        (lambda: client.embed(["a", None]), TypeError, r"texts\[1\] is of type NoneType"),
    ]:
        with pytest.raises(kind, match=message):
            call()
    with pytest.raises(ValueError, match="batch_size is 0"):
        connect(server, batch_size=0)
    assert not server.requests


HALF = "cut \ud83d"


@synchronous
def test_a_text_that_is_not_unicode_is_named_by_its_position_and_nothing_is_sent(connect):
    server = Server()
    client = connect(server, batch_size=2)
    for call, name in [
        (lambda: client.embed(["a", "b", "c", HALF]), "texts[3]"),
        (lambda: client.embed(HALF), "texts[0]"),
        (lambda: client.embed("x", model=HALF), "model"),
        (lambda: client.search("docs", ["a", "b", HALF]), "texts[2]"),
        (lambda: client.search("docs", "x", filter={"year": {"in": ["a", HALF]}}), "filter.year.in[1]"),
        (lambda: client.search("docs", "x", filter={HALF: 1}), "a key of filter"),
        (lambda: client.search(HALF, "x"), "the name of the index"),
        (lambda: client.upsert("docs", ["a", HALF], ["x", "y"]), "ids[1]"),
        (lambda: client.upsert("docs", ["a"], ["x"], metadata=[{"note": HALF}]), "metadata[0].note"),
        (lambda: client.delete_items("docs", ["a", "b", HALF]), "ids[2]"),
    ]:
        with pytest.raises(InvalidTextError) as raised:
            call()
        problem = "is no Unicode text: character 4 is \\ud83d, half of a surrogate pair"
        assert str(raised.value) == f"{name} {problem}"
        assert raised.value.__cause__ is None
    assert not server.requests


def test_items_are_written_in_batches_with_their_ids_and_metadata(connect):
    server = Server(
        script=lambda request: httpx2.Response(200, json={"upserted": len(json.loads(request.content)["ids"])})
    )
    notes = [{"n": 1}, None, {"n": 3}]
    assert connect(server, batch_size=2).upsert("my docs", ["a", "b", "c"], ["x", "y", "z"], metadata=notes) == 3
    assert server.bodies == [
        {"texts": ["x", "y"], "ids": ["a", "b"], "metadata": notes[:2]},
        {"texts": ["z"], "ids": ["c"], "metadata": notes[2:]},
    ]
    assert server.requests[0].url.raw_path == b"/indexes/my%20docs/upsert"


def test_vectors_of_an_answer_name_their_space_in_searches_and_upserts(connect):
    results = httpx2.Response(200, json={"results": [[]], "space_id": "space-a", "chain": "c@1"})
    server = Server(npy([[1, 2]]), httpx2.Response(200, json={"upserted": 1}), results, results)
    client = connect(server)
    found = client.embed("x")
    client.upsert("docs", ["a"], vectors=found)
    client.search("docs", vectors=found, k=3)
    client.search("docs", vectors=found.vectors)
    sent = server.bodies[1:]
    assert [body.get("space_id") for body in sent] == ["space-a", "space-a", None]
    assert sent[1]["vectors"] == ["AACAPwAAAEA="] and sent[1]["k"] == 3


def test_hits_have_their_probabilities(connect):
    items = [
        {"id": "a", "score": 0.9, "metadata": None, "probability": 0.75},
        {"id": "b", "score": 0.1, "metadata": {}},
    ]
    server = Server(httpx2.Response(200, json={"results": [items], "space_id": "space-a", "chain": "c@1"}))
    assert connect(server).search("docs", texts="x", min_probability=0.5).probabilities == [[0.75, None]]
    assert server.bodies[0]["min_probability"] == 0.5


@synchronous
def test_vectors_of_an_answer_that_are_codes_are_not_taken_for_floats(connect):
    server = Server(npy([[200, 3]], **{"x-output-dtype": "uint8"}))
    client = connect(server)
    found = client.embed("x", output_dtype="uint8")
    for call in (lambda: client.search("docs", vectors=found), lambda: client.upsert("docs", ["a"], vectors=found)):
        with pytest.raises(ValueError, match="encoded as uint8"):
            call()
    assert len(server.requests) == 1


def test_an_index_that_moves_between_two_batches_of_a_search_is_noticed(connect):
    answers = [httpx2.Response(200, json={"results": [[]], "space_id": space, "chain": "c@1"}) for space in "ab"]
    with pytest.raises(SpaceMismatchError, match="a, b"):
        connect(Server(*answers), batch_size=1).search("docs", ["x", "y"])


def test_deleting_no_items_sends_nothing(connect):
    server = Server()
    assert connect(server).delete_items("docs", []) == 0
    assert not server.requests
