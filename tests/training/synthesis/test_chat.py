import asyncio
import json

import pytest

from lathe.training.endpoint_client import CallError, EndpointClient, RateLimiter, RetryPolicy
from lathe.training.synthesis.chat import Endpoint, ask_model
from tests.helpers import find_free_port

KEY = "sk-secret"


@pytest.fixture
def ask(chat_server):
    """Return a function that sends one chat request and returns the answer."""

    def once(url=None, timeout=5.0):
        async def asked():
            client = EndpointClient(KEY, timeout, RetryPolicy(1.0, 1.0), RateLimiter(None, None))
            try:
                endpoint = Endpoint(url or chat_server.url, "host", KEY)
                return await ask_model(client, endpoint, "m", "Say yes.", {"max_tokens": 5})
            finally:
                await client.close()

        return asyncio.run(asked())

    return once


def test_chat_sends_model_prompt_and_key_and_reads_text_finish_reason_and_tokens(ask, chat_server):
    answer = ask()
    assert (answer.text, answer.finish_reason) == ("Yes.", "stop")
    assert (answer.prompt_tokens, answer.completion_tokens) == (50, 20)
    assert chat_server.bodies == [
        {"model": "m", "messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 5}
    ]
    assert chat_server.headers[0]["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("message", "text", "reason"),
    [
        ({"content": [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]}, "in parts", "stop"),
        ({"content": None}, "", "stop"),
        ({"content": None, "refusal": "I will not."}, "I will not.", "content_filter"),
    ],
)
def test_chat_reads_messages_in_parts_empty_ones_and_refusals_and_estimates_tokens(
    ask, chat_server, message, text, reason
):
    body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    chat_server.script = lambda server, asked: (200, {}, body)
    answer = ask()
    assert (answer.text, answer.finish_reason, answer.counted) == (text, reason, False)
    assert answer.prompt_tokens == 3  # guessed of eight characters


@pytest.mark.parametrize(
    ("reply", "kind", "retryable", "said"),
    [
        ((401, {}, b'{"error": {"message": "bad key sk-secret"}}'), "refused with 401", False, "401: bad key …"),
        ((404, {}, b'{"detail": "no such model"}'), "refused with 404", False, "no such model"),
        (
            (307, {"location": "http://elsewhere/"}, b""),
            "refused with 307",
            False,
            "http://elsewhere/, which is not followed",
        ),
        ((429, {"retry-after": "7"}, b"{}"), "rate limit", True, "429"),
        ((500, {}, b""), "server error 500", True, "500: Internal Server Error"),
        (
            (200, {"content-type": "text/html"}, b"<html>sk-secret</html>"),
            "not JSON",
            True,
            "not JSON but text/html",
        ),
        ((200, {}, b'{"choices": [{}]}'), "other JSON", True, "JSON without a message"),
        ((200, {}, b'{"error": "busy"}'), "other JSON", True, "the response is an error: busy"),
        ((200, {"content-length": 999}, b'{"choices"'), "cut connection", True, "the connection was cut"),
        (
            (200, {"content-encoding": "gzip"}, b"no gzip"),
            "not JSON",
            True,
            "the response is compressed (gzip), although it must not be",
        ),
    ],
)
def test_a_failed_request_raises_a_call_error_with_its_kind_and_whether_to_retry(
    ask, chat_server, reply, kind, retryable, said
):
    """The error does not contain the key."""
    chat_server.script = lambda server, asked: reply
    with pytest.raises(CallError) as raised:
        ask()
    error = raised.value
    assert (error.kind, error.retryable) == (kind, retryable) and said in str(error) and KEY not in str(error)
    assert error.retry_after == (7 if reply[0] == 429 else None) and len(chat_server.bodies) == 1


def test_an_unreachable_endpoint_raises_a_call_error_to_be_retried(ask):
    with pytest.raises(CallError, match="no connection") as raised:
        ask(f"http://127.0.0.1:{find_free_port()}/v1")
    assert (raised.value.kind, raised.value.retryable, raised.value.status) == ("no connection", True, 0)


def test_an_answer_of_over_16_megabytes_is_refused(ask, chat_server):
    chat_server.script = lambda server, asked: (200, {}, b" " * 17_000_000)
    with pytest.raises(CallError, match="more than 16,000,000 bytes"):
        ask()
