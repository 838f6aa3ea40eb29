"""An encoder behind an embeddings API gives the API's vectors, asks for none twice, and refuses what is none."""

import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from lathe.training.deciding.sample import encode_leniently
from lathe.training.distributed.engine import RayEngine
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec, StoreSettings
from lathe.training.errors import (
    EncoderError,
    EngineError,
    NotFiniteError,
    SpaceChangedError,
    TextError,
    UpstreamBusyError,
    UpstreamError,
    UpstreamUnavailableError,
)
from tests.embeddings_server import WIDTH, rows_of

TEXTS = [f"text {number}" for number in range(10)]
FORM = {"content-type": "text/html"}


def answer_openai(rows, **more):
    """Return an answer of OpenAI's protocol as the stub's script takes it."""
    data = [{"index": index, "embedding": row} for index, row in enumerate(rows)]
    return 200, {}, json.dumps({"data": data, "model": "m"} | more).encode()


def unless_probing(answer):
    """Return a script that answers all calls but the first, which has the probe texts."""
    return lambda server, number, body: answer if number else None


@pytest.mark.parametrize("protocol", ["openai", "cohere"])
def test_vectors_of_every_protocol_are_those_of_the_api_in_the_order_of_the_texts(connect, protocol):
    with connect(protocol) as encoder:
        found = encoder.encode(TEXTS, normalize=False)
        unit = encoder.encode(TEXTS)
    np.testing.assert_allclose(found.vectors, rows_of(TEXTS), rtol=1e-6)
    np.testing.assert_allclose(unit.vectors, rows_of(TEXTS, normalize=True), atol=1e-7)
    assert found.tokens.sum() == 3 * len(TEXTS)  # as the API counts them
    assert encoder.dimensions == WIDTH


def test_a_text_that_is_not_unicode_is_named_and_not_sent(connect, embeddings_server):
    with connect("openai") as encoder:
        sent = len(embeddings_server.bodies)
        with pytest.raises(TextError, match=r"input 1: character 0 is \\udc00, half of a surrogate pair"):
            encoder.encode(["a", "\udc00"])
    assert len(embeddings_server.bodies) == sent


def test_dimensions_are_asked_for_and_other_widths_than_those_are_refused(connect, embeddings_server):
    with connect(dimensions=5) as encoder:
        assert encoder.encode(TEXTS).vectors.shape == (len(TEXTS), 5)
    embeddings_server.change = lambda texts, rows: rows[:, :4]
    with pytest.raises(UpstreamError, match="it answers 4 dimensions instead of the 6 in the settings"):
        with connect(dimensions=6):
            pass


def test_a_prompt_goes_before_the_text_and_unknown_ones_are_refused(connect, embeddings_server):
    with connect(prompts={"query": "query: "}) as encoder:
        encoder.encode(["a"], "query")
        assert embeddings_server.bodies[-1]["input"] == ["query: a"]
        with pytest.raises(EncoderError, match="far has no prompt 'poem'; there are: .*query"):
            encoder.encode(["a"], "poem")


def test_ways_to_cut_texts_that_the_api_does_not_have_are_refused(connect):
    with connect() as encoder:
        with pytest.raises(EncoderError, match="truncates long texts only at the end"):
            encoder.encode(["a"], truncation_side="left")
        with pytest.raises(EncoderError, match="long_text may be truncate or error"):
            encoder.encode(["a"], long_text="mean")


def test_an_api_that_counts_no_tokens_has_them_estimated(connect, embeddings_server):
    embeddings_server.counted = False
    with connect() as encoder:
        assert encoder.encode(["some words that are counted here"]).tokens.sum() > 3


def test_a_text_is_never_asked_for_twice_whoever_asks_and_whatever_is_asked_beside_it(connect, embeddings_server):
    """Not in one request, not in two at once, not by another process on the same folder."""
    embeddings_server.script = lambda *_: time.sleep(0.02)
    with connect() as encoder, connect() as other:
        threads = [threading.Thread(target=encoder.encode, args=(TEXTS + TEXTS[:3],)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_array_equal(other.encode(TEXTS).vectors, encoder.encode(TEXTS).vectors)
        encoder.encode([*TEXTS, "new"])
    assert embeddings_server.count_asked() == dict.fromkeys([*TEXTS, "new"], 1)


def test_a_call_has_at_most_batch_size_texts_and_no_more_run_at_once_than_concurrency(connect, embeddings_server):
    running, most, guard = 0, 0, threading.Lock()

    def observe(server, number, body):
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        time.sleep(0.1)
        with guard:
            running -= 1

    with connect(concurrency=3) as encoder:
        embeddings_server.script = observe
        encoder.encode([f"{number}" for number in range(30)])
    assert most == 3 and max(len(body["input"]) for body in embeddings_server.bodies) == 4


REFUSALS = {
    "400": (400, {}, b'{"error": "unknown field"}'),
    "422": (422, {}, b'{"error": {"message": "encoding_format must be float"}}'),
    "500": (500, {}, b"Internal Server Error"),
    "no vectors": (200, {}, b'{"data": [{"index": 0, "embedding": null}]}'),
}
"""How servers answer that know no base64."""


@pytest.mark.parametrize(
    ("refusal", "stored"),
    [*((refusal, False) for refusal in REFUSALS.values()), (REFUSALS["400"], True)],
    ids=[*REFUSALS, "stored"],
)
def test_an_api_that_knows_no_base64_is_asked_for_lists_once_that_is_known(connect, embeddings_server, refusal, stored):
    """Also in a process that asks for no probe texts, as the space is known."""

    def answer(server, number, body):
        if "encoding_format" in body:
            return refusal
        rows = rows_of(body["input"])
        data = [{"index": index, "embedding": row.tolist()} for index, row in enumerate(rows)]
        return 200, {}, json.dumps({"data": data[::-1]}).encode()

    embeddings_server.script = answer
    if stored:
        with connect():
            embeddings_server.bodies.clear()
    with connect() as encoder:
        np.testing.assert_allclose(encoder.encode(TEXTS, normalize=False).vectors, rows_of(TEXTS), rtol=1e-6)
        embeddings_server.bodies.clear()
        encoder.encode(["another text"])
        assert embeddings_server.bodies and not any("encoding_format" in body for body in embeddings_server.bodies)


def test_an_api_that_answered_once_is_not_asked_otherwise_when_it_fails(connect, embeddings_server):
    with connect(patience=0.0) as encoder:
        embeddings_server.script = lambda *_: REFUSALS["500"]
        embeddings_server.bodies.clear()
        with pytest.raises(UpstreamUnavailableError):
            encoder.encode(["a text"])
        assert [body["encoding_format"] for body in embeddings_server.bodies] == ["base64"]


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (answer_openai([[1.0] * 7]), UpstreamError, "vectors of 7 dimensions, not 8 as before"),
        (answer_openai([]), UpstreamError, "0 vectors for 1 texts"),
        (answer_openai(["no base64"]), UpstreamError, "not a list of numbers"),
        (answer_openai([[]]), UpstreamError, "vectors of 0 numbers"),
        ((200, {}, b'{"data": [{"index": 3, "embedding": [1]}]}'), UpstreamError, "an index of 3"),
        ((200, {}, b'{"object": "list"}'), UpstreamError, "JSON without 'data'"),
        ((200, {}, b'{"error": "model is loading"}'), UpstreamError, "model is loading"),
        ((200, FORM, b"<html>login</html>"), UpstreamUnavailableError, "not JSON but text/html"),
        (
            (200, {"content-length": 99, "connection": "close"}, b'{"data": ['),
            UpstreamUnavailableError,
            "the connection was cut",
        ),
        ((200, {}, (time.sleep(0.05) or b" " for _ in range(99))), UpstreamUnavailableError, "no answer within 0.3 s"),
        ((500, FORM, b"<html>oops</html>"), UpstreamUnavailableError, "it answered 500: Internal Server Error"),
        ((503, {"retry-after": "7"}, b'{"error": "busy"}'), UpstreamUnavailableError, "it answered 503: busy"),
        ((429, {"retry-after": "7"}, b'{"error": {"message": "slow"}}'), UpstreamBusyError, "it answered 429: slow"),
        ((401, {}, b'{"error": "bad key sk-sec"}'), UpstreamError, "it refuses calls without a key (401)"),
        ((404, {}, b'{"error": "no model m"}'), UpstreamError, "it answered 404: no model m"),
        ((302, {"location": "http://a/"}, b""), UpstreamError, "a redirect, which is not followed"),
        ((400, {}, b'{"error": "too long"}'), TextError, ": it answered 400: too long"),
        (answer_openai([[1e39] * 8]), NotFiniteError, "input 0: far gives NaN, inf or only zeros for this text"),
    ],
)
def test_an_answer_that_is_none_is_an_error_of_its_kind_and_nothing_is_stored(
    connect, embeddings_server, answer, error, message
):
    """The text is asked for again afterwards, and then has the vector of the API."""
    with connect(patience=0.0, timeout=0.3) as encoder:
        embeddings_server.script = unless_probing(answer)
        with pytest.raises(error) as raised:
            encoder.encode(["a text"])
        assert type(raised.value) is error and message in str(raised.value)
        if answer[1].get("retry-after"):
            assert raised.value.retry_after == 7
        embeddings_server.script = None
        encoder.client.endpoint.limiter.held = 0.0
        np.testing.assert_allclose(encoder.encode(["a text"], normalize=False).vectors, rows_of(["a text"]), rtol=1e-6)


def test_a_text_that_is_refused_or_has_no_finite_vector_does_not_harm_those_beside_it(connect, embeddings_server):
    def refuse(server, number, body):
        return (400, {}, b'{"error": "flagged"}') if "text 6" in body["input"] else None

    def spoil(texts, rows):
        return [row * np.nan if text == "text 2" else row for text, row in zip(texts, rows, strict=True)]

    with connect() as encoder:
        embeddings_server.script, embeddings_server.change = refuse, spoil
        with pytest.raises(NotFiniteError, match="input 2: "):
            encoder.encode(TEXTS)
        with pytest.raises(TextError, match="input 5: .*flagged"):
            encoder.encode([text for text in TEXTS if text != "text 2"])
        embeddings_server.asked.clear()
        good = [text for text in TEXTS if text not in ("text 2", "text 6")]
        np.testing.assert_allclose(encoder.encode(good, normalize=False).vectors, rows_of(good), rtol=1e-6)
        assert embeddings_server.asked == []


def test_failing_calls_are_tried_again_after_what_the_api_asks_and_the_key_appears_in_no_error(
    connect, embeddings_server, monkeypatch
):
    monkeypatch.setenv("FAR_KEY", "sk-secret")
    failures = [(429, {"retry-after": "0.3"}, b""), (200, FORM, b"<html>"), (503, {}, b"with sk-secret")]
    with connect(api_key_env="FAR_KEY") as encoder:
        embeddings_server.script = lambda server, number, body: failures[number - 1] if number <= 3 else None
        begun = time.monotonic()
        encoder.encode(["a"])
        assert time.monotonic() - begun > 0.3
        assert (encoder.usage["calls"], encoder.usage["failures"], encoder.usage["retries"]) == (5, 3, 3)
        embeddings_server.script = lambda *_: (500, {}, b'{"error": "with sk-secret"}')
        encoder.client.endpoint.policy = replace(encoder.client.endpoint.policy, patience=0)
        with pytest.raises(UpstreamUnavailableError, match="with …") as raised:
            encoder.encode(["b"])
        assert "sk-secret" not in f"{raised.value}{encoder.problem}{encoder.describe()}{encoder.spec}"
    assert {headers["authorization"] for headers in embeddings_server.headers} == {"Bearer sk-secret"}


def test_after_several_failures_in_a_row_the_api_is_left_alone_until_one_call_succeeds(connect, embeddings_server):
    with connect(patience=0.0) as encoder:
        embeddings_server.script = lambda *_: (500, {}, b"")
        for number in range(8):
            with pytest.raises(UpstreamUnavailableError, match="it answered 500"):
                encoder.encode([f"{number}"])
        assert embeddings_server.calls == 1 + 5  # the probes, and what opened the breaker
        embeddings_server.script = None
        with pytest.raises(UpstreamUnavailableError) as raised:
            encoder.encode(["a"])
        assert 0 < raised.value.retry_after <= 5
        encoder.client.endpoint.breaker.opened_until = 0.0
        encoder.encode(["a"])
        assert not encoder.client.endpoint.breaker.open and encoder.problem is None


def test_calls_keep_within_the_requests_and_tokens_of_a_minute(connect, embeddings_server):
    with connect(requests_per_minute=600, concurrency=8, batch_size=1) as encoder:
        begun = time.monotonic()
        encoder.encode(["a", "b", "c", "d"])
        assert time.monotonic() - begun > 0.3  # a tenth of a second each, after that of the probes


def test_an_encoder_without_its_key_or_with_one_that_is_refused_cannot_be_opened(
    connect, embeddings_server, monkeypatch
):
    monkeypatch.delenv("FAR_KEY", raising=False)
    with pytest.raises(EncoderError, match="the environment variable FAR_KEY, which api_key_env of far names, is not"):
        with connect(api_key_env="FAR_KEY"):
            pass
    monkeypatch.setenv("FAR_KEY", "sk-secret")
    embeddings_server.script = lambda *_: (403, {}, b'{"error": "no sk-secret"}')
    with pytest.raises(UpstreamError, match=r"it refuses the key in FAR_KEY \(403\)"):
        with connect(api_key_env="FAR_KEY"):
            pass


# The space of the vectors.


def test_the_fingerprint_covers_provider_model_revision_dimensions_length_prompts_and_what_the_api_states(
    connect, embeddings_server
):
    found = []
    variants = (
        {},
        {"provider": "another"},
        {"model": "other"},
        {"revision": "2"},
        {"dimensions": 5},
        {"max_length": 9},
        {"prompts": {"query": "q"}},
    )
    for settings in variants:
        with connect(store=False, **settings) as encoder:
            found.append(encoder.fingerprint)
    embeddings_server.model = "m-2026-11"
    with connect(store=False) as encoder:
        found.append(encoder.fingerprint)
    embeddings_server.model = "m"
    for space in ("1", "2"):  # of a server that is a Lathe too
        embeddings_server.headers_sent = {"x-space-id": space}
        with connect(store=False) as encoder:
            found.append(encoder.fingerprint)
    assert len(set(found)) == len(found) == 10
    embeddings_server.headers_sent = {}
    with connect(store=False, concurrency=2, timeout=9, batch_size=3, price=1.0) as encoder:
        assert encoder.fingerprint == found[0]


def test_a_model_that_changes_under_its_name_is_noticed_by_its_probes_and_its_vectors_are_refused(
    connect, embeddings_server
):
    """Stored vectors, of the known space, are still given. Those that may be of either are asked for again."""
    with connect(probe_seconds=3600) as encoder:
        encoder.encode(TEXTS)
        encoder._run(encoder.space.check())
        with encoder.store.guard, encoder.store.connection:
            encoder.store.connection.execute("UPDATE vectors SET stored_at = stored_at - 10000")
            encoder.store.connection.execute("UPDATE spaces SET checked_at = checked_at - 9000")
        embeddings_server.salt = "retrained"
        encoder.encode(["unconfirmed"])
        encoder.space.identified = encoder.store.read_space(encoder.space.address)
        with pytest.raises(SpaceChangedError, match="answers other vectors under the name m .* set another revision"):
            encoder.encode(["new"])
        assert "answers for stored texts only" in encoder.problem
        np.testing.assert_allclose(encoder.encode(TEXTS, normalize=False).vectors, rows_of(TEXTS), rtol=1e-6)
        with pytest.raises(SpaceChangedError):
            encoder.encode(["unconfirmed"])
        assert embeddings_server.asked.count("new") == 0
    with connect(probe_seconds=3600) as reopened:  # another process notices it too
        assert reopened.fingerprint == encoder.fingerprint
        with pytest.raises(SpaceChangedError):
            reopened.encode(["new"])
    with connect(revision="2") as renewed:
        np.testing.assert_allclose(
            renewed.encode(TEXTS, normalize=False).vectors, rows_of(TEXTS, salt="retrained"), rtol=1e-6
        )


def test_a_model_that_is_as_before_again_is_taken_again(connect, embeddings_server):
    with connect(probe_seconds=0.05) as encoder:
        embeddings_server.salt = "retrained"
        time.sleep(0.06)
        with pytest.raises(SpaceChangedError):
            encoder.encode(["a"])
        embeddings_server.salt = ""
        time.sleep(0.06)
        encoder.encode(["a"])
        assert encoder.problem is None


def test_an_answer_that_states_another_model_is_refused_at_once(connect, embeddings_server):
    with connect() as encoder:
        embeddings_server.model = "m-2026-11"
        for text in ("a", "b"):
            with pytest.raises(SpaceChangedError, match="reports m-2026-11 as model of m, but reported m before"):
                encoder.encode([text])
    with connect() as reopened:  # a new space, whose vectors are its own
        assert reopened.fingerprint != encoder.fingerprint
        reopened.encode(["a"])


def test_an_api_that_cannot_be_reached_at_the_start_leaves_the_stored_vectors(connect, embeddings_server):
    with connect(probe_seconds=1e-9, patience=0.0) as encoder:
        expected = encoder.encode(TEXTS).vectors
    embeddings_server.script = lambda *_: (503, {}, b"")
    with connect(probe_seconds=1e-9, patience=0.0) as reopened:
        np.testing.assert_array_equal(reopened.encode(TEXTS).vectors, expected)
        with pytest.raises(UpstreamUnavailableError):
            reopened.encode(["new"])
    with pytest.raises(UpstreamUnavailableError), connect(provider="never asked", patience=0.0):
        pass


def test_an_encoder_that_was_asked_a_short_time_ago_is_opened_without_a_call(connect, embeddings_server):
    for _ in range(3):
        with connect():
            pass
    assert embeddings_server.calls == 1


def test_closing_an_encoder_cancels_its_calls_at_once(connect, embeddings_server):
    with connect() as encoder:
        embeddings_server.script = lambda *_: time.sleep(3)
        errors = []

        def encode():
            try:
                encoder.encode(["a"])
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=encode)
        thread.start()
        while embeddings_server.calls < 2:
            time.sleep(0.005)
        begun = time.monotonic()
        encoder.close()
        thread.join()
        assert time.monotonic() - begun < 1 and [type(error) for error in errors] == [UpstreamUnavailableError]


# What uses encoders.


def test_a_folder_for_no_bytes_is_not_created(connect, tmp_path):
    with connect(max_bytes=0) as encoder:
        encoder.encode(TEXTS)
    assert not (tmp_path / "upstream").exists() and StoreSettings(tmp_path).max_bytes > 0


def test_an_outage_during_advice_is_raised_and_blamed_on_no_text(connect, embeddings_server):
    with connect(patience=0.0) as encoder:
        embeddings_server.script = lambda *_: (503, {}, b"")
        calls = embeddings_server.calls
        with pytest.raises(UpstreamUnavailableError):
            encode_leniently(encoder, TEXTS[:4], lambda *_: None)
        assert embeddings_server.calls == calls + 1


def test_what_needs_a_loaded_model_refuses_an_upstream_encoder(connect, build_spec):
    with pytest.raises(
        EncoderError, match="far is behind an embeddings API, but this needs a model that is loaded here"
    ):
        Encoder(build_spec())
    with connect() as encoder, pytest.raises(EngineError, match="use --engine local"):
        RayEngine(1, 1)._get_pool(encoder)


def test_a_spec_survives_json_and_leaves_out_what_earlier_versions_do_not_know(build_spec):
    spec = build_spec(prompts={"query": "q"}, price=1.0)
    assert EncoderSpec(**json.loads(json.dumps(spec.to_json()))) == spec
    assert "upstream" not in EncoderSpec("local").to_json()
